"""A progress bar of one run: steps, loss, tokens a second, time left."""

from typing import TYPE_CHECKING

from attnres.train.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Call it with finished steps and newest figures; without a terminal it prints lines."""

    def __init__(self, recipe: Recipe, console: "Console | None" = None):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._console = console or Console()
        self._name, self._n_steps = recipe.name, recipe.n_steps
        self._figures: dict[str, float] = {}
        self._bar = Bar(
            TextColumn("{task.description:8}", markup=False),
            BarColumn(bar_width=None),  # what the words leave of the line
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[words]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=600,  # s; a slow step must not fall out of it
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(recipe.name, total=recipe.n_steps, words="loading")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def __call__(self, step: int, figures: dict[str, float]) -> None:
        self._figures |= figures
        words = self._words()
        self._bar.update(self._task, completed=step, words=words)
        if not self._console.is_terminal and "validation_loss" in figures:
            line = f"{self._name}: step {step} of {self._n_steps}, {words}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _words(self) -> str:
        """What is known by now: a run may be validated before its first step is logged."""
        words = {"loss": "loss {:.3f}", "validation_loss": "held out {:.3f}",
                 "tokens_per_s": "{:,.0f} tokens/s"}  # fmt: skip
        known = [name for name in words if name in self._figures]
        return ", ".join(words[name].format(self._figures[name]) for name in known)
