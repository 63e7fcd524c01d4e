"""One command, called in this process."""

from collections.abc import Sequence
from typing import Any

from attnres.cli import main


def call_command(name: str, arguments: Sequence[Any], capsys: Any) -> tuple[Any, str, str]:
    """Exit status, the words of standard output and standard error."""
    status = 0
    try:
        main([name, *map(str, arguments)])
    except SystemExit as end:
        status = end.code or 0
    output = capsys.readouterr()
    return status, " ".join(output.out.split()), output.err
