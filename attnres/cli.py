"""The command `attnres`: one subcommand a job, each with --help.

Bad input ends with one line on standard error and exit status 2.
"""

import contextlib
import importlib
import io
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout
from attnres.residual import ResidualConfig, format_residual, parse_residual

if TYPE_CHECKING:
    from attnres.train.recipe import Recipe

Parsed = TypeVar("Parsed")


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_overview())
        return
    if name not in COMMANDS:
        _fail(f"no command {name!r}; there are: {', '.join(COMMANDS)}")
    try:
        COMMANDS[name](arguments[1:])
    except (ValueError, OSError, FloatingPointError) as error:
        _fail(_one_line(str(error)))
    except ModuleNotFoundError as error:
        _fail(f"{error}; pip install 'attention-residuals[train,report]' brings all commands")
    except KeyboardInterrupt:
        print("\nattnres: interrupted; the same command resumes", file=sys.stderr)
        raise SystemExit(130) from None


def demo(arguments: list[str]) -> None:
    """Train one small model under three residuals, and write a report."""
    from attnres.train.recipes import demo as recipe
    from attnres.train.recipes import demo_comparison

    @dataclass(frozen=True)
    class Arguments:
        folder: Path = Path("runs/demo")

    chosen = _parse(Arguments, "demo", demo.__doc__, arguments)
    for run in demo_comparison():
        _run_apart(run, chosen.folder / run.name)
    _report(chosen.folder)


def train(arguments: list[str]) -> None:
    """Train by a recipe; every field of it can be set. Run again to resume.

    RECIPE is a name listed below or package.module:function, a function that returns a Recipe.
    """
    from attnres.train.recipes import RECIPES
    ...
