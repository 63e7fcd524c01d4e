"""What a model got in a task, question by question: a JSON file, and figures with their errors."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnres.train.run_folder import write_atomically


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The results of one task.

    Args:
        settings: of the task, as `Task.settings` gives them.
        model: which model and weights, as `harness.model_stamp` gives them.
        n_shots: examples that stood before each question.
        questions: a name each, with a digest of its content.
        values: by metric, a number a question.
        higher_is_better: by metric.
        metric: the one that is compared.
        aggregates: what the harness makes of all questions, by metric, also where that is no mean.
        answers: what the model wrote, a text a question; empty where it wrote nothing.
        n_cut: texts, or batches of them where the model writes, that were longer than it reads and
            lost their beginning.
        seconds: that the questions took.
        versions: of the packages that decide the figures.
    """

    settings: Mapping[str, Any]
    model: Mapping[str, Any]
    n_shots: int
    questions: Sequence[str]
    values: Mapping[str, Sequence[float]]
    higher_is_better: Mapping[str, bool]
    metric: str
    aggregates: Mapping[str, float] = field(default_factory=dict)
    answers: Sequence[str] = field(default_factory=list)
    n_cut: int = 0
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        return self.settings["task"]

    def mean(self, metric: str) -> float:
        return statistics.fmean(self.values[metric])

    def standard_error(self, metric: str) -> float:
        """Of the mean over questions, as if they were drawn at random; NaN of a single one."""
        values = self.values[metric]
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(result_file(folder, self.task), json.dumps(asdict(self), indent=1) + "\n")


def result_file(folder: Path, task: str) -> Path:
    return folder / f"{task}.json"


def read_scored(folder: Path, task: str) -> Scored | None:
    """None where there is no such file; ValueError where it is no result."""
    file = result_file(folder, task)
    if not file.exists():
        return None
    try:
        return Scored(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is no result of a task: {error}; move it away") from error
