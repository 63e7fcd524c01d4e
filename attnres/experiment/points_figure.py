"""The figure of a sweep: losses of the arms at every point, and beside them the differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnres.analysis.canvas import Theme, escape, label_axes, new_panels, ticks
from attnres.experiment.study import REFERENCE
from attnres.experiment.summary import ArmSummary, final_losses, summarise
from attnres.experiment.sweep import At

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "osD^vP"
MOST_NAMES = 10  # of points below a panel
BESIDE = 0.08  # of a point's place: intervals of the arms stand beside each other


def points_figure(found: Sequence[At], theme: Theme) -> Figure:
    """Each seed is a faint dot, and the mean over seeds a line; intervals are of 95 %."""
    figure, (losses, differences) = new_panels(theme, n_columns=2)
    arms = list(found[0].study.arms)
    for i, arm in enumerate(arms):
        color, mark = theme.colors[i % len(theme.colors)], MARKS[i % len(MARKS)]
        _losses(losses, found, arm, color, mark)
        if arm != REFERENCE:
            _differences(differences, found, arm, color, mark, BESIDE * (i - len(arms) / 2))
    differences.axhline(0, color=theme.ink, linewidth=0.9)
    for axes in (losses, differences):
        ticks(axes.set_xticks, [escape(at.point) for at in found], MOST_NAMES)
        axes.set_xlim(-0.5, len(found) - 0.5)
    label_axes(losses, "point", "loss (nats a token)", theme)
    label_axes(differences, "point", f"loss minus {REFERENCE} (nats a token)", theme)
    figure.legend(loc="outside upper left", ncols=6, frameon=False, labelcolor=theme.ink)
    return figure


def _losses(axes: Axes, found: Sequence[At], arm: str, color: str, mark: str) -> None:
    seeds = [
        (place, loss)
        for place, at in enumerate(found)
        for loss in final_losses(at.study, at.rows, arm).values()
    ]
    axes.plot(*_columns(seeds), mark, color=color, alpha=0.35, markersize=4)
    means = [(place, each.mean) for place, each in _summaries(found, arm) if each.mean is not None]
    axes.plot(*_columns(means), color=color, linewidth=1.6, label=escape(arm))


def _columns(pairs: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [place for place, _ in pairs], [value for _, value in pairs]


def _differences(
    axes: Axes, found: Sequence[At], arm: str, color: str, mark: str, shift: float
) -> None:
    for place, each in _summaries(found, arm):
        if each.difference is not None:
            mean, half_width, _ = each.difference
            axes.errorbar(
                *(place + shift, mean, half_width), fmt=mark, color=color, capsize=3, markersize=5
            )


def _summaries(found: Sequence[At], arm: str) -> list[tuple[int, ArmSummary]]:
    """Of the points that have rows of this arm, by the point's place."""
    every = [(place, summarise(at.study, at.rows)) for place, at in enumerate(found)]
    return [(place, each) for place, arms in every for each in arms if each.arm == arm]
