"""Blocks run as a reader would run them: in the order of the page, in one folder.

Commands of `attnres` are called in this process, since each process takes seconds to import torch.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from pages import Block, commands, matches

from attnres.cli import main

AS_THEY_ARE = ("cat", "head", "ls", "mkdir", "python")
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
# Where a page is silent, a run has few steps in the tests; one that is marked slow is run as it is.
SHORTEST = {
    "train": {
        "--n-steps": "2",
        "--seq-len": "32",
        "--batch-size": "2",
        "--n-validation-sequences": "2",
        "--n-probe-sequences": "1",
        "--data.tokenizer": "bytes",
    },
}


class Reader:
    """One who reads a page: the names of its Python, the variables of its shell."""

    def __init__(self, folder: Path, names: dict[str, Any]):
        self.folder = folder
        self.names = names
        self.variables: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """Take each further block of Python for one that stands by itself."""
        self.module = types.ModuleType("page_of_the_documentation")
        self.module.__dict__.update(self.names)
        sys.modules[self.module.__name__] = self.module  # where a dataclass looks its types up

    def run(self, block: Block) -> str:
        """What the block prints."""
        if block.title:
            (self.folder / block.title).write_text(block.code, encoding="utf-8")
            return ""
        if block.language == "python":
            return self._run_python(block)
        return "".join(self._run_command(each, block) for each in commands(block))

    def _run_python(self, block: Block) -> str:
        printed = io.StringIO()
        code = compile(block.code, block.place, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self.module.__dict__)
        return printed.getvalue()

    def _run_command(self, command: Any, block: Block) -> str:
        words = shlex.split(self._filled_in(command.words), comments=True)
        assigned = ASSIGNMENT.fullmatch(words[0])
        if assigned and len(words) == 1:
            self.variables[assigned[1]] = assigned[2]
            return ""
        printed = self._printed(words, block)
        if block.language == "console" and command.output:
            assert matches(command.output, printed), f"{block.place} prints\n{printed}"
        return printed

    def _filled_in(self, line: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: self.variables[found[1]], line)

    def _printed(self, words: list[str], block: Block) -> str:
        if words[0] == "attnres":
            arguments = words[1:] if block.mark == "slow" else shortened(words[1:])
            return call(arguments, block.place)
        assert words[0] in AS_THEY_ARE, (
            f"{block.place}: {words[0]} is not run; mark the block: <!-- not run: the reason -->"
        )
        program = sys.executable if words[0] == "python" else words[0]
        done = subprocess.run(
            [program, *words[1:]], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block.place}: {done.stderr}"
        return done.stdout


def call(arguments: list[str], place: str) -> str:
    """What a command prints on standard output; it must end well."""
    printed, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            main(arguments)
    except SystemExit as end:
        if end.code:
            message = f"{place}: attnres {shlex.join(arguments)}\n{errors.getvalue()}"
            raise AssertionError(message) from end
    return printed.getvalue()


def shortened(arguments: list[str]) -> list[str]:
    settings = SHORTEST.get(arguments[0], {})
    given = {word.partition("=")[0] for word in arguments}
    added = [pair for pair in settings.items() if pair[0] not in given]
    return [*arguments, *(word for pair in added for word in pair)]
