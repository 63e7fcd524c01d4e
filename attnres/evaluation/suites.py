"""Suites of tasks by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from attnres.evaluation import big_bench, cloze, human_eval, paper, reasoning
from attnres.evaluation.task import Task, named


class Choice(NamedTuple):
    """What a suite is made with."""

    names: Sequence[str] = ()  # of its tasks; all where there is none
    big_bench: Path | None = None  # folder of that package's tasks


SUITES: dict[str, Callable[[Choice], Sequence[Task]]] = {
    "paper": lambda choice: paper.PAPER,
    "reasoning": lambda choice: reasoning.tasks(),
    "reasoning-likelihood": lambda choice: reasoning.likelihood_tasks(),
    "cloze": lambda choice: cloze.tasks(),
    "bigbench": lambda choice: big_bench.tasks(choice.big_bench, choice.names),
    "human-eval": lambda choice: human_eval.tasks(),
}
NAMED_IN_FULL = ("bigbench",)  # which choose by names of their own


def tasks_of(text: str, big_bench: Path | None = None) -> list[Task]:
    """The tasks of a suite, "paper", or some of them, "paper:mmlu,gsm8k".

    Raises:
        ValueError: no such suite or task, or a package or folder that it needs is not there.
    """
    name, _, words = text.partition(":")
    if name not in SUITES:
        raise ValueError(f"no suite {name!r}; there are: {', '.join(SUITES)}")
    names = tuple(word for word in words.split(",") if word)
    found = list(SUITES[name](Choice(names, big_bench)))
    if not names or name in NAMED_IN_FULL:
        return found
    known = {task.name: task for task in found}
    for each in names:
        if each not in known:
            raise ValueError(f"suite {name!r} has no task {each!r}; it has: {', '.join(known)}")
    return [known[each] for each in names]


def chosen_tasks(
    suites: Sequence[str], specs: Sequence[str], n_shots: int | None, big_bench: Path | None
) -> list[Task]:
    """All tasks of these suites, then those of the harness; each name once."""
    found = [task for text in suites for task in tasks_of(text, big_bench)]
    found += [named(spec) for spec in specs]
    if not found:
        raise ValueError("give tasks by --suite or --tasks")
    names = [task.name for task in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"asked for twice: {', '.join(twice)}")
    return found if n_shots is None else [replace(task, n_shots=n_shots) for task in found]
