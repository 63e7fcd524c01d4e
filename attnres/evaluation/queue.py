"""Asks a model one task after the other: a file each, and what is there is not asked again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from attnres.evaluation.harness import Harness
from attnres.evaluation.scored import Scored, read_scored
from attnres.evaluation.task import Task


class Watch(Protocol):
    """Who is told how it goes on."""

    def begun(self, task: Task, place: int, n_tasks: int) -> None:
        """A task is asked."""

    def scored(self, found: Scored, place: int, n_tasks: int, is_new: bool) -> None:
        """A task has its file; `is_new` says whether it was asked now."""

    def failed(self, task: Task, reason: str) -> None:
        """A task was not possible; the others go on."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """One model and how it is asked.

    Args:
        load: gives the model, once it is needed.
        stamp: of the model, as `model_stamp` gives it; a result of another is replaced.
        folder: where the results are.
        limit: the most questions of each part of a task; all where None.
        runs_code: whether what the model writes may be run.
    """

    load: Callable[[], Harness]
    stamp: Mapping[str, object]
    folder: Path
    limit: int | None = None
    runs_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What came out, and why a task gave nothing."""

    scored: list[Scored] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def ask_all(asking: Asking, tasks: Sequence[Task], watch: Watch) -> Asked:
    """Every task that has no result yet of this model and these settings, and all results then."""
    asked, model = Asked(), list[Harness]()
    for place, task in enumerate(tasks, start=1):
        found = read_scored(asking.folder, task.name)
        is_new = found is None or not _is_of(found, asking, task)
        if is_new:
            watch.begun(task, place, len(tasks))
            if not model:
                model.append(asking.load())
            try:
                found = model[0].ask(task, asking.limit, asking.runs_code)
            except (ValueError, OSError) as error:
                asked.failed[task.name] = " ".join(str(error).split())
                watch.failed(task, asked.failed[task.name])
                continue
            found.write(asking.folder)
        assert found is not None
        asked.scored.append(found)
        watch.scored(found, place, len(tasks), is_new)
    return asked


def _is_of(found: Scored, asking: Asking, task: Task) -> bool:
    same_model = found.model == {**asking.stamp}
    return same_model and found.settings == task.settings(asking.limit)
