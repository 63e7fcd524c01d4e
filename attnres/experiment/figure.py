"""The figure of a study: each arm's difference from standard, beside another work's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnres.analysis.plot import Style, Theme
from attnres.experiment.paired import Difference
from attnres.experiment.study import REFERENCE
from attnres.experiment.summary import ArmSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, FRAME, ROW = 9.2, 1.5, 0.32  # inches: of the page, around the arms, an arm


def differences(arms: Sequence[ArmSummary], theme: Theme) -> Figure:
    """A point and an interval an arm, the first arm on top; below 0 is better than standard."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [each for each in arms if each.difference is not None]
    figure = Figure(figsize=(WIDTH, FRAME + ROW * len(shown)), layout="constrained")
    figure.set_facecolor(theme.paper)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.axvline(0, color=theme.ink, linewidth=0.9)
    for place, each in enumerate(shown):
        if each.difference is not None:
            _interval(axes, each.difference, place, theme)
    papers = {place: each.paper_difference for place, each in enumerate(shown)}
    known = {place: x for place, x in papers.items() if x is not None}
    if known:
        style: Style = {"marker": "D", "mfc": "none", "mew": 1.4, "linestyle": "none"}
        label = "the paper"
        axes.plot([*known.values()], [*known], color=theme.colors[2], label=label, **style)
    axes.set_yticks(range(len(shown)), [each.arm.replace("$", r"\$") for each in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    _frame(axes, theme)
    return figure


def _interval(axes: Axes, difference: Difference, place: int, theme: Theme) -> None:
    axes.errorbar(
        difference.mean,
        place,
        xerr=difference.half_width,
        fmt="o",
        color=theme.colors[1],
        capsize=3,
        markersize=5,
        label="here, with 95 % interval" if place == 0 else None,
    )


def _frame(axes: Axes, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.ink)
    axes.tick_params(colors=theme.ink, labelsize=10)
    axes.grid(color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"loss minus {REFERENCE} (nats a token)", color=theme.ink, fontsize=11)
    axes.figure.legend(  # pyright: ignore[reportAttributeAccessIssue]
        loc="outside upper left", ncols=2, frameon=False, labelcolor=theme.ink, fontsize=11
    )
