"""The command `attnres evaluate`: scores of saved models, and what one has over another."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnres.arguments import parse
from attnres.quiet import quiet_transformers

if TYPE_CHECKING:
    from attnres.evaluation.queue import Asked
    from attnres.evaluation.task import Task


def evaluate(arguments: list[str]) -> None:
    """Score a saved model on suites and on tasks of lm-evaluation-harness. Run again to resume.

    attnres evaluate FOLDER --suite cloze reasoning --against OTHER

    FOLDER is a converted or a plain model, or a finished run. Suites: paper (its fifteen tasks),
    reasoning, reasoning-likelihood, cloze, bigbench, human-eval; some tasks of one by
    paper:mmlu,gsm8k. A task is a name of the harness, or the path of a YAML file. With
    HF_HUB_OFFLINE=0 the harness fetches the data of a task; without, they must be on this machine.
    """
    import tyro

    @dataclass(frozen=True)
    class Evaluate:
        folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """a local folder, a .gguf file, or smollm2"""
        suite: tuple[str, ...] = ()
        """suites to ask"""
        tasks: tuple[str, ...] = ()
        """names that the harness knows, or paths of tasks in YAML"""
        against: str | None = None
        """another model, asked the same and compared question by question"""
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
        """where results go, one JSON a task; if not given, evaluation/ in the model's folder"""

    chosen = parse(Evaluate, "evaluate", evaluate, arguments)
    if chosen.batch_size < 1 or (chosen.limit is not None and chosen.limit < 1):
        raise ValueError("--batch-size and --limit are at least 1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the harness forks
    from attnres.evaluation.suites import chosen_tasks

    tasks = chosen_tasks(chosen.suite, chosen.tasks, chosen.n_shots, chosen.big_bench)
    tasks = _allowed(tasks, chosen.run_code)
    ours = _ask(chosen, chosen.folder, tasks, _results_folder(chosen.folder, chosen.output))
    failed = dict(ours.failed)
    if chosen.against is not None:
        name = "against" if chosen.output is not None else None
        where = _results_folder(chosen.against, chosen.output and chosen.output / str(name))
        theirs = _ask(chosen, chosen.against, tasks, where)
        failed |= theirs.failed
        _compare(chosen, ours, theirs)
    if failed:
        raise ValueError("; ".join(failed.values()))


def _allowed(tasks: "Sequence[Task]", runs_code: bool) -> "list[Task]":
    """Without those that run code, which are named; ValueError where there is no other."""
    left_out = [task.name for task in tasks if task.runs_code and not runs_code]
    if left_out:
        words = f"{', '.join(left_out)}: run what the model writes, which needs --run-code"
        if len(left_out) == len(tasks):
            raise ValueError(words)
        print(f"left out: {words}")
    return [task for task in tasks if task.name not in left_out]


def _results_folder(source: str, output: Path | None) -> Path:
    """In the model's own folder, where it has one."""
    if output is not None:
        return output
    path = Path(source)
    return path / "evaluation" if path.is_dir() else Path("runs/evaluation") / path.stem


def _ask(chosen: Any, source: str, tasks: "Sequence[Task]", folder: Path) -> "Asked":
    from rich.console import Console

    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.evaluation.harness import Harness, model_stamp
    from attnres.evaluation.page import score_columns
    from attnres.evaluation.progress import Lines
    from attnres.evaluation.queue import Asking, ask_all
    from attnres.train.run_folder import write_atomically

    quiet_transformers()
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


def _compare(chosen: Any, ours: "Asked", theirs: "Asked") -> None:
    """The table of differences, beside our results as a page and as JSON."""
    from rich.console import Console

    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.evaluation.compare import compare
    from attnres.evaluation.page import comparison_columns, for_a_terminal, notes
    from attnres.train.run_folder import write_atomically

    others = {each.task: each for each in theirs.scored}
    both = [each for each in ours.scored if each.task in others]
    found = [line for each in both for line in compare(each, others[each.task])]
    if not found:
        return
    folder = _results_folder(chosen.folder, chosen.output)
    table, words = comparison_columns(found), "\n\n".join(notes(found))
    title = f"# {chosen.folder} against {chosen.against}"
    write_atomically(folder / "comparison.md", f"{title}\n\n{to_markdown(table)}\n{words}\n")
    data = {"folder": chosen.folder, "against": chosen.against} | {
        "tasks": [asdict(each) | {"difference": each.difference._asdict()} for each in found]
    }
    write_atomically(folder / "comparison.json", json.dumps(data, indent=1) + "\n")
    console = Console()
    console.print(rich_columns(for_a_terminal(found)))
    console.print(words, markup=False, highlight=False)
    print(f"page: {folder / 'comparison.md'}")
