"""Commands that train: by a recipe, or the demo's three."""

import importlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnres.arguments import fail, flat, parse, show_warnings_in_a_line
from attnres.cli.ranks import is_first, is_one_of_many
from attnres.cli.reports import write_page
from attnres.quiet import show_cursor, silence_imports

if TYPE_CHECKING:
    from attnres.train.recipe import Recipe


@dataclass(frozen=True)
class Demo:
    folder: Path = Path("runs/demo")
    """where the runs and report.html go"""
    n_steps: int = 0
    """optimiser steps of each run; 0 is the demo's own number"""


def demo(arguments: list[str]) -> None:
    """Train one small model under three residuals, and write a report. Run again to resume."""
    from attnres.train.recipes import demo_comparison

    chosen = parse(Demo, "demo", demo, arguments)
    for recipe in demo_comparison(chosen.n_steps):
        path = chosen.folder / recipe.name
        if not _say_if_done(recipe, path):
            _train_apart(recipe, path)
    write_page(chosen.folder)


def train(arguments: list[str]) -> None:
    """Train by a recipe; every field of it can be set. Run again to resume.

    attnres train demo --name block4 --model.residual attn_res:n_blocks=4 --n-steps 100
    torchrun --nproc-per-node 2 -m attnres train demo --data-parallel fsdp

    RECIPE is demo, small, kimi_laptop, kimi_laptop_20m, kimi_194m, kimi_241m, kimi_296m, kimi_436m,
    kimi_528m, kimi_linear_48b, or package.module:function, a function that returns a Recipe.
    """
    from attnres.train.recipe import Recipe

    name = arguments[0] if arguments else "--help"
    if name.startswith("-") and name not in ("-h", "--help"):
        raise ValueError(f"the recipe comes first: attnres train RECIPE {' '.join(arguments)}")
    recipe = Recipe(name="NAME") if name in ("-h", "--help") else _find_recipe(name)

    @dataclass(frozen=True)
    class Train:
        recipe: Annotated[Recipe, flat()]
        folder: Path = Path("runs")
        """the run goes into a folder of its name in here"""

    rest = ["--help"] if name in ("-h", "--help") else arguments[1:]
    chosen = parse(Train, "train RECIPE", train, rest, Train(recipe=recipe))
    path = chosen.folder / chosen.recipe.name
    if is_one_of_many():
        _train_on_rank(chosen.recipe, path)
    elif not _say_if_done(chosen.recipe, path):
        _train_with_progress(chosen.recipe, path)
    if is_first():
        print(f"run: {path}; page: attnres report {chosen.folder}")


def _train_on_rank(recipe: "Recipe", path: Path) -> None:
    import torch

    from attnres.distributed import world

    # of a source that a layer hands on; no residual method changes one in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    is_cuda = recipe.device.startswith("cuda")
    is_cuda |= recipe.device == "auto" and torch.cuda.is_available()
    with world.joined("cuda" if is_cuda else "cpu", recipe.timeout_s):
        if is_first() and not _say_if_done(recipe, path):
            _train_with_progress(recipe, path)
        else:
            from attnres.train.loop import train

            train(recipe, path)


def _find_recipe(name: str) -> "Recipe":
    from attnres.train.recipe import Recipe
    from attnres.train.recipes import RECIPES

    if name in RECIPES:
        return RECIPES[name]()
    module_name, _, function = name.partition(":")
    if not module_name or not function:
        raise ValueError(f"no recipe {name!r}; there are: {', '.join(RECIPES)}, module:function")
    sys.path.insert(0, os.getcwd())
    try:
        recipe = getattr(importlib.import_module(module_name), function)()
    except (ImportError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(f"no recipe {name!r}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise ValueError(f"no recipe {name!r}: it returns {recipe!r}, not a Recipe")
    return recipe


def _say_if_done(recipe: "Recipe", path: Path) -> bool:
    from attnres.train.run_folder import RunFolder

    is_done = RunFolder(path, recipe.to_json()).is_done()
    if is_done:
        print(f"{recipe.name}: already done, {recipe.n_steps} of {recipe.n_steps} steps in {path}")
    return is_done


def _train_apart(recipe: "Recipe", path: Path) -> None:
    """Train in a process of its own, so that the peak memory is this run's alone."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    process = multiprocessing.get_context("spawn").Process(
        target=_train_child, args=(recipe, path), daemon=True
    )
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child begins so
    process.start()
    signal.signal(signal.SIGINT, handler)
    try:
        process.join()
    except KeyboardInterrupt:
        process.join(timeout=2)  # s, for a child that has not begun; then it is terminated
        show_cursor()
        raise
    if process.exitcode and process.exitcode < 0:
        name = signal.Signals(-process.exitcode).name
        print(f"attnres: the run in {path} was ended by {name}", file=sys.stderr)
        raise SystemExit(128 - process.exitcode)
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _train_child(recipe: "Recipe", path: Path) -> None:
    show_warnings_in_a_line()
    silence_imports()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception is lost in a finaliser
    try:
        _train_with_progress(recipe, path)
    except (ValueError, OSError, FloatingPointError) as error:
        fail(str(error))


def _train_with_progress(recipe: "Recipe", path: Path) -> bool:
    """Whether the run is done; SIGTERM makes it save and stop after the step it is at."""
    from attnres.train.progress import Progress

    with _stopped_by_sigterm() as stop, Progress(recipe) as progress:
        from transformers.utils import logging  # seconds of imports, so below the bar

        from attnres.train.loop import train

        logging.disable_progress_bar()  # of writing one file, amid our own
        is_done = train(recipe, path, progress, stops=stop)
    if not is_done:
        print(f"stopped by SIGTERM, and saved in {path}; the same command resumes")
    return is_done


class Stop:
    """Whether SIGTERM has come, asked after each step; before the first it ends the process."""

    def __init__(self):
        self._has_begun = self._is_asked = False

    def __call__(self) -> bool:
        self._has_begun = True
        return self._is_asked

    def receive(self, signum: int, frame: object) -> None:
        if self._is_asked or not self._has_begun:  # there is nothing to save, or no time
            show_cursor()
            os._exit(128 + signum)  # an exception is lost in a finaliser
        self._is_asked = True


@contextmanager
def _stopped_by_sigterm() -> Iterator[Stop]:
    """Many processes are ended by their launcher, each as it stands."""
    stop = Stop()
    if is_one_of_many():
        yield stop
        return
    handler = signal.signal(signal.SIGTERM, stop.receive)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, handler)
