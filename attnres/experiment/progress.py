"""What a person sees of a study: a line a run, and below them a bar of all steps to go.

Without a terminal there are the lines alone, and each ends with what the bar has of the time left.
"""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnres.experiment.results import Row
from attnres.experiment.study import Trial

if TYPE_CHECKING:
    from rich.console import Console


class StudyProgress:
    """The bar counts the steps of all runs."""

    def __init__(self, name: str, n_steps: int, console: "Console | None" = None):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = console or Console()
        self._n_steps = n_steps
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),  # what the words leave of the line
            TextColumn("{task.fields[words]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=1800,  # s; arms differ in pace
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, words="loading")
        self._start = time.perf_counter()

    def __enter__(self) -> "StudyProgress":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def show(self, n_done: int, n_left: int, steps: Sequence[int]) -> None:
        """Runs done and to go, and the finished steps of those that are under way."""
        self._bar.update(
            self._task,
            total=(n_done + n_left) * self._n_steps,
            completed=n_done * self._n_steps + sum(steps),
            words=f"{n_done}/{n_done + n_left} runs",
        )

    def finished(self, row: Row, n_done: int, n_left: int) -> None:
        """One line of what came out."""
        loss = row.tuning_loss if row.phase == "tuning" else row.report_loss
        words = f"{loss:.4f}" if math.isfinite(loss) else "diverged"
        self._print(
            f"{n_done}/{n_done + n_left} {row.phase} {row.arm}, rate {row.lr:g}, seed {row.seed}: "
            f"{words}, {row.tokens_per_s:,.0f} tokens/s{self._time_left()}"
        )

    def failed(self, trial: Trial, reason: str) -> None:
        """Why an arm gets no more runs."""
        self._print(f"{trial.name} failed, and {trial.arm} is left out: {reason}")

    def _time_left(self) -> str:
        left_s = self._bar.tasks[0].time_remaining
        if self._console.is_terminal or not left_s:
            return ""
        return f", about {left_s / 60:.0f} min left"

    def _print(self, words: str) -> None:
        minutes = (time.perf_counter() - self._start) / 60
        line = f"{minutes:6.1f} min  {words}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
