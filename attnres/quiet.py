"""What others say or leave in a terminal, and a user of a command need not see."""

import logging
import os


def silence_imports() -> None:
    """Before transformers is imported, which imports torchao where that is installed."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_transformers() -> None:
    """No bars and no advice, amid what a command says itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def show_cursor() -> None:
    """Again, where a bar hid it and its process ends at once."""
    if os.isatty(1):
        os.write(1, b"\x1b[?25h")  # ANSI's DECTCEM; plain enough for a signal handler
