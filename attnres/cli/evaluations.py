"""The command `attnres evaluate`: scores of saved models, and what one has over another."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnres.arguments import parse
from attnres.inside import check_inside
from attnres.quiet import quiet_transformers

if TYPE_CHECKING:
    from attnres.analysis.table import Column
    from attnres.evaluation.compare import Comparison
    from attnres.evaluation.queue import Asked
    from attnres.evaluation.task import Task


def evaluate(arguments: list[str]) -> None:
    """Score a saved model on suites and on tasks of lm-evaluation-harness. Run again to resume.

    attnres evaluate FOLDER --suite cloze reasoning --against OTHER

    FOLDER is a converted or a plain model, or a finished run; with several, as of several seeds,
    each has its own OTHER, and differences are taken pair by pair too. Suites: paper (its fifteen
    tasks), reasoning, reasoning-likelihood, cloze, bigbench, human-eval; some tasks of one by
    paper:mmlu,gsm8k. A task is a name that lm-evaluation-harness knows, or the path of a YAML
    file. With HF_HUB_OFFLINE=0 the harness fetches the data of a task; without, they must be on
    this machine.
    """
    import tyro

    @dataclass(frozen=True)
    class Evaluate:
        folders: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """a local folder, a .gguf file, or smollm2"""
        suite: tuple[str, ...] = ()
        """suites to ask"""
        tasks: tuple[str, ...] = ()
        """names that the harness knows, or paths of tasks in YAML"""
        against: tuple[str, ...] = ()
        """another model for each, asked the same and compared question by question"""
        n_shots: int | None = None
        """examples before each question; as many as the task says, if not given"""
        limit: int | None = None
        """the most questions of each part of a task"""
        batch_size: int = 1
        """sequences a forward pass"""
        run_code: bool = False
        """let tasks run what the model writes; in a container, if it may be malicious"""
        big_bench: Path | None = None
        """folder of the unpacked package bigbench"""
        device: str = "auto"
        """such as cuda:1; auto is a GPU where there is one"""
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
        """of the weights; auto: as they are saved"""
        output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"], metavar="FOLDER")] = None
        """where results go, one JSON a task, below it a folder of each model's path where there
        are several; if not given, evaluation/ in the model's folder"""

    chosen = parse(Evaluate, "evaluate", evaluate, arguments)
    _check(chosen)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the harness forks
    from attnres.evaluation.suites import chosen_tasks
    from attnres.models.pretrained import check_saved

    tasks = chosen_tasks(chosen.suite, chosen.tasks, chosen.n_shots, chosen.big_bench)
    tasks = _allowed(tasks, chosen.run_code)
    models = list(dict.fromkeys((*chosen.folders, *chosen.against)))
    for source in models[1:]:  # the first is loaded at once
        check_saved(source)
    asked = {source: _ask(chosen, source, tasks, len(models)) for source in models}
    pairs = list(zip(chosen.folders, chosen.against, strict=False))
    found = [_compare(chosen, asked, *pair, len(models)) for pair in pairs]
    if len(found) > 1:
        _compare_pairs(chosen, found, len(models))
    failed = [f"{source}: {why}" for source in models for why in asked[source].failed.values()]
    if failed:
        raise ValueError("; ".join(failed))


def _check(chosen: Any) -> None:
    if chosen.batch_size < 1 or (chosen.limit is not None and chosen.limit < 1):
        raise ValueError("--batch-size and --limit are at least 1")
    if not chosen.folders:
        raise ValueError("give a folder to evaluate")
    if chosen.against and len(chosen.against) != len(chosen.folders):
        raise ValueError(
            f"{len(chosen.folders)} folders against {len(chosen.against)}: give one for each"
        )


def _allowed(tasks: "Sequence[Task]", runs_code: bool) -> "list[Task]":
    """Without those that run code, which are named; ValueError where there is no other."""
    left_out = [task.name for task in tasks if task.runs_code and not runs_code]
    if left_out:
        words = f"{', '.join(left_out)}: run what the model writes, which needs --run-code"
        if len(left_out) == len(tasks):
            raise ValueError(words)
        print(f"left out: {words}")
    return [task for task in tasks if task.name not in left_out]


def _results_folder(source: str, output: Path | None, n_models: int) -> Path:
    """In the model's own folder, where it has one."""
    path = Path(source)
    if output is not None:
        return output if n_models == 1 else output / "-".join(path.parts).strip("/-.")
    if not path.is_dir():
        return Path("runs/evaluation") / path.stem
    check_inside(path / "evaluation", path)
    return path / "evaluation"


def _ask(chosen: Any, source: str, tasks: "Sequence[Task]", n_models: int) -> "Asked":
    from rich.console import Console

    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.evaluation.harness import Harness, model_stamp
    from attnres.evaluation.page import score_columns
    from attnres.evaluation.progress import Lines
    from attnres.evaluation.queue import Asking, ask_all
    from attnres.train.run_folder import write_atomically

    quiet_transformers()
    folder = _results_folder(source, chosen.output, n_models)
    asking = Asking(
        load=lambda: Harness(source, chosen.batch_size, chosen.device, chosen.dtype),
        stamp=model_stamp(source, chosen.dtype),
        folder=folder,
        limit=chosen.limit,
        runs_code=chosen.run_code,
    )
    asked = ask_all(asking, tasks, Lines(source))
    if asked.scored:
        table = score_columns(asked.scored, tasks)
        Console().print(rich_columns(table))
        write_atomically(folder / "scores.md", f"# Scores of {source}\n\n{to_markdown(table)}")
        print(f"results: {folder}")
    return asked


def _compare(
    chosen: Any, asked: "Mapping[str, Asked]", source: str, other: str, n_models: int
) -> "list[Comparison]":
    """The table of differences, beside our results as a page and as JSON."""
    from attnres.evaluation.compare import compare
    from attnres.evaluation.page import comparison_columns, for_a_terminal, notes

    theirs = {each.task: each for each in asked[other].scored}
    both = [each for each in asked[source].scored if each.task in theirs]
    found = [line for each in both for line in compare(each, theirs[each.task])]
    if found:
        place = _results_folder(source, chosen.output, n_models) / "comparison"
        title = f"{source} against {other}"
        _show(place, title, for_a_terminal(found), comparison_columns(found), notes(found))
        tasks = [asdict(each) | {"difference": each.difference._asdict()} for each in found]
        _write_json(place, {"folder": source, "against": other, "tasks": tasks})
    return found


def _compare_pairs(chosen: Any, found: "Sequence[Sequence[Comparison]]", n_models: int) -> None:
    """What the pairs say together, beside the results of the first."""
    from attnres.evaluation.compare import over_pairs
    from attnres.evaluation.page import notes_on_pairs, pairs_columns

    together = over_pairs(found)
    if not together:
        return
    place = _results_folder(chosen.folders[0], chosen.output, n_models) / "pairs"
    table = pairs_columns(together)
    _show(place, f"{len(found)} pairs", table, table, notes_on_pairs(found))
    tasks = [asdict(each) | {"difference": each.difference._asdict()} for each in together]
    models = {"folders": chosen.folders, "against": chosen.against}
    _write_json(place, {**models, "tasks": tasks})


def _show(
    place: Path,
    title: str,
    shown: "Sequence[Column]",
    whole: "Sequence[Column]",
    words: Sequence[str],
) -> None:
    from rich.console import Console

    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.train.run_folder import write_atomically

    text = "\n\n".join(words)
    page = place.with_suffix(".md")
    write_atomically(page, f"# {title}\n\n{to_markdown(whole)}\n{text}\n")
    console = Console()
    console.print(rich_columns(shown))
    console.print(text, markup=False, highlight=False)
    print(f"page: {page}")


def _write_json(place: Path, data: Any) -> None:
    from attnres.train.run_folder import write_json

    write_json(place.with_suffix(".json"), data)
