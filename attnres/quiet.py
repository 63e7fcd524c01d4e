"""What others say while they are imported, and a user of a command need not read."""

import logging


def silence_imports() -> None:
    """Before transformers is imported, which imports torchao where that is installed."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_transformers() -> None:
    """No bars and no advice, amid what a command says itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
