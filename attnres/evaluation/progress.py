"""What a person sees while a model is asked: a line a task; the harness shows its own bars."""

import time

from attnres.evaluation.scored import Scored
from attnres.evaluation.task import Task


class Lines:
    """Prints to standard output; bars, on standard error, are where that is a terminal."""

    def __init__(self, source: str):
        self._source = source
        self._start = time.perf_counter()

    def begun(self, task: Task, place: int, n_tasks: int) -> None:
        """Nothing: the bars say it."""

    def scored(self, found: Scored, place: int, n_tasks: int, is_new: bool) -> None:
        score, error = found.mean(found.metric), found.standard_error(found.metric)
        words = f"{found.metric} {score:.4f} ± {error:.4f}, {len(found.questions):,} questions"
        words += f", {found.n_cut:,} too long and cut" if found.n_cut else ""
        self._print(f"{place}/{n_tasks} {found.task}: {words}{'' if is_new else ', done before'}")

    def failed(self, task: Task, reason: str) -> None:
        self._print(f"{task.name} was not asked: {reason}")

    def _print(self, words: str) -> None:
        minutes = (time.perf_counter() - self._start) / 60
        print(f"{minutes:6.1f} min  {self._source}: {words}", flush=True)
