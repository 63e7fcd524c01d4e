"""Dynamics of runs as a table, as CSV and as a figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from attnres.analysis.canvas import Theme, escape, label_axes, new_panels
from attnres.analysis.dynamics import Depths, dynamics, loss_gap, widening
from attnres.analysis.run_styles import styles
from attnres.analysis.runs import Run
from attnres.analysis.table import Column, number_text, standard_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "growth": "RMS of sum ~ depth^",
    "output_growth": "RMS of output ~ depth^",
    "reset": "Reset at block ends",
    "gradient_ratio": "Gradient max/min",
    "entropy": "Entropy of weights",
    "newest_before_attention": "Newest, before attention",
    "newest_before_mlp": "Newest, before MLP",
    "newest_is_largest": "Newest is largest",
    "embedding_before_attention": "Embedding, before attention",
    "embedding_before_mlp": "Embedding, before MLP",
    "sink": "Sink",
    "sink_weight": "Sink over even share",
}
PANELS = {
    "growth": "exponent of the\nrunning sum over depth",
    "gradient_ratio": "largest gradient over smallest",
    "embedding_before_attention": "weight of the embedding,\nbefore attention",
    "embedding_before_mlp": "weight of the embedding,\nbefore MLP",
    "newest_before_attention": "weight of the newest,\nbefore attention",
    "newest_before_mlp": "weight of the newest,\nbefore MLP",
}


def columns(runs: Sequence[Run]) -> list[Column]:
    """A line a figure and a column a run: the last probe of each."""
    last = [(run, found[-1]) for run in runs if (found := dynamics(run))]
    table = [Column(title="Last probe", cells=[*TITLES.values()], is_number=False)]
    for run, depths in last:
        cells = [_text(getattr(depths, name)) for name in TITLES]
        table.append(Column(title=run.name, cells=cells))
    return table


def words(runs: Sequence[Run]) -> Iterator[str]:
    """Below the table of these runs: those without a probe yet, and gaps in loss."""
    without = [run.name for run in runs if not run.rows("probe")]
    if without:
        yield f"Without a probe yet: {', '.join(without)}."
    yield from gap_words(runs)


def gap_words(runs: Sequence[Run]) -> Iterator[str]:
    """The gap in validation loss to standard, and whether it widens."""
    for run in runs:
        standard = standard_for(run, runs)
        gap = loss_gap(run, standard) if standard is not None else []
        if standard is None or not gap:
            continue
        points = [f"{step:,}: {number_text(x, '+z.4f')}" for step, x in _few(gap)]
        words = f"{run.name} less {standard.name}, by step: {', '.join(points)}."
        wider = widening(gap)
        if wider is not None:
            how = "larger" if wider > 0 else "smaller"
            words += f" The gain is {abs(wider):.4f} {how} at the end than halfway."
        yield words


def to_csv(runs: Sequence[Run]) -> str:
    """A line a run and probe."""
    stream = io.StringIO()
    names = ["run", *(each.name for each in fields(Depths))]
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    for run in runs:
        writer.writerows({"run": run.name, **asdict(depths)} for depths in dynamics(run))
    return stream.getvalue()


def dynamics_figure(runs: Sequence[Run], theme: Theme) -> Figure:
    """Six figures over steps, a line a run that has them; runs of one residual share a colour."""
    figure, panels = new_panels(theme, 3, 2, 9.6)
    for axes, (name, label) in zip(panels, PANELS.items(), strict=True):
        for run, style in zip(runs, styles(runs, theme), strict=True):
            points = [(each.step, getattr(each, name)) for each in dynamics(run)]
            found = [(step, value) for step, value in points if value is not None]
            steps, values = zip(*found, strict=True) if found else ((), ())
            axes.plot(steps, values, ms=4, label=escape(run.name), **style)
        label_axes(axes, "step", label, theme)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=3, frameon=False, labelcolor=theme.ink
    )
    return figure


def _few(gap: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most five points, the first and the last among them."""
    n = min(len(gap), 5)
    places = {round(i * (len(gap) - 1) / max(n - 1, 1)) for i in range(n)}
    return [gap[place] for place in sorted(places)]


def _text(value: float | str | None) -> str:
    return value if isinstance(value, str) else number_text(value, "z.3f")
