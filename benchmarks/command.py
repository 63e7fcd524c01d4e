"""What each benchmark does as a command: settings from its arguments, one line where it fails."""

import sys
from collections.abc import Callable
from typing import TypeVar

import tyro
from correctness import WrongError
from machine import keep_pages

Settings = TypeVar("Settings")


def run_command(
    main: Callable[[Settings], None], settings: type[Settings], file: str, what: str, about: str
) -> None:
    """Read settings, keep memory that is freed, and run `main`.

    Args:
        what: no time is printed while this errs.
        about: the description that --help shows.
    """
    chosen = tyro.cli(settings, prog=f"python benchmarks/{file}", description=about)
    keep_pages()
    try:
        main(chosen)
    except WrongError as wrong:
        sys.exit(f"no time is printed while {what} errs:\n{wrong}")
    except ValueError as error:
        sys.exit(str(error))
