"""Who may work on a study at once: locks on files, which end with the process that has them."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def alone(file: Path):
    """For a command that is the only one; ValueError where another has this lock."""
    return _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def beside(file: Path):
    """For one of several that tolerate each other; ValueError where one wants to be alone."""
    return _locked(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def in_turn(file: Path):
    """For what takes a moment: waits until the others are done."""
    return _locked(file, fcntl.LOCK_EX)


@contextmanager
def _locked(file: Path, kind: int) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+") as lock:  # both ways, which a file system over a network asks for
        try:
            fcntl.flock(lock, kind)
        except BlockingIOError as error:
            raise ValueError(f"another command is at work on this study: it has {file}") from error
        yield
