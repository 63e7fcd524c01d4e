"""How the command line is read by tyro, and how it says what is wrong."""

import contextlib
import io
import re
import sys
import warnings
from collections.abc import Callable
from itertools import groupby
from typing import Any, NoReturn, TypeVar

from attnres.residual import ResidualConfig, format_residual, parse_residual

Parsed = TypeVar("Parsed")


def parse(
    kind: type[Parsed],
    command: str,
    documented: Callable[..., Any],
    arguments: list[str],
    default: Parsed | None = None,
) -> Parsed:
    """The fields of the dataclass `kind` from the command line; `documented` gives the help."""
    import tyro

    errors = io.StringIO()
    settings: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind,
                prog=f"attnres {command}",
                description=documented.__doc__,
                args=arguments,
                registry=_registry(),
                **settings,
            )
    except SystemExit as end:
        if end.code:
            fail(end.code if isinstance(end.code, str) else _sentence(errors.getvalue()))
        raise


def _registry() -> Any:
    """Teach tyro how a residual method is written on the command line."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    def from_text(words: list[str]) -> ResidualConfig:
        try:
            return parse_residual(words[0])
        except ValueError as error:
            raise SystemExit(str(error)) from error  # tyro would wrap a ValueError in its own words

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def residual(type_info: Any) -> Any:
        if type_info.type is not ResidualConfig:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="METHOD[:NAME=VALUE,...]",
            instance_from_str=from_text,
            is_instance=lambda x: isinstance(x, ResidualConfig),
            str_from_instance=lambda config: [format_residual(config)],
        )

    return registry


def show_warnings_in_a_line() -> None:
    """Without the place in the code, which says nothing to a user."""
    warnings.showwarning = lambda message, *place: print(f"attnres: {message}", file=sys.stderr)


def flat() -> Any:
    """Annotates a field whose own fields need no prefix."""
    import tyro

    return tyro.conf.arg(name="")


def fail(message: str) -> NoReturn:
    """One line on standard error and exit status 2; a terminal is not steered by what it says."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    print(f"attnres: error: {line}", file=sys.stderr)
    raise SystemExit(2)


def _sentence(box: str) -> str:
    """What tyro's box says, without its title, its rules and its help."""
    lines = [line.strip("│| ") for line in box.splitlines()][1:]
    parts = [list(part) for is_words, part in groupby(lines, _is_words) if is_words]
    sentence = re.sub(r"^Error parsing [\w.]*: ", "", " ".join(parts[0]))  # ours follows
    if "Perhaps you meant:" in lines:
        options = [line.split()[0] for line in lines if re.match(r"--\w", line)]
        sentence += f"; perhaps you meant {' or '.join(options)}"
    return sentence


def _is_words(line: str) -> bool:
    return bool(line.strip("─╰╯-"))
