"""What can be explored: finished runs, and models saved by anything else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnres.analysis.runs import Run, load_run, load_runs
from attnres.analysis.table import residual_words
from attnres.json_file import read_object


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A saved model; `run` is what it was trained in, if that is known."""

    name: str
    model: Path
    run: Run | None = None

    @property
    def residual(self) -> str:
        """Its method in words; empty where only the model can say."""
        return residual_words(self.run) if self.run else ""

    def effects(self) -> dict[str, Any] | None:
        """What `attnres ablate` found of this run, beside whose folder it left it."""
        if self.run is None:
            return None
        file = self.run.path.parent / "ablation.json"
        if not file.is_file():
            return None
        return read_object(file).get(self.run.name)


def find_subjects(folders: Sequence[Path]) -> list[Subject]:
    """The models of all folders, each the folder of an experiment, of a run or of a model.

    Raises:
        ValueError: a folder in which there is nothing to explore, or not yet.
    """
    found = [subject for folder in folders for subject in _subjects_in(Path(folder))]
    names = [subject.name for subject in found]
    if len(set(names)) == len(names):
        return found
    return [replace(each, name=f"{_parent(each)}/{each.name}") for each in found]


def _subjects_in(folder: Path) -> list[Subject]:
    if not folder.is_dir():
        raise ValueError(f"no folder at {folder}")
    if (folder / "recipe.json").is_file():
        return [_of_run(load_run(folder.resolve()))]
    if (folder / "config.json").is_file():
        return [Subject(name=folder.resolve().name, model=folder)]
    finished = [run for run in load_runs(folder) if (run.path / "model").is_dir()]
    if not finished:
        raise ValueError(f"no run in {folder} has a model: only finished runs can be explored")
    return [_of_run(run) for run in finished]


def _of_run(run: Run) -> Subject:
    if not (run.path / "model").is_dir():
        steps = f"{run.n_steps_done:,} of {run.n_steps or 0:,} steps done"
        raise ValueError(f"{run.path} has no model: only a finished run can be explored ({steps})")
    return Subject(name=run.name, model=run.path / "model", run=run)


def _parent(subject: Subject) -> str:
    path = subject.run.path if subject.run else subject.model
    return path.resolve().parent.name
