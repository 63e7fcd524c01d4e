"""The timelines of a pipeline, one panel each, and below them what each hop sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnres.analysis.canvas import Theme, label_axes, new_panels, ticks
from attnres.distributed.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR = 0.8  # height of a rank, and width of all bars of a hop
FRAME, RANK = 1.1, 0.26  # inches: around a panel, a rank
COLORS = {"forward": 1, "backward": 2}  # places in a theme's colours
PALEST = 0.35  # opacity of a rank's last chunk
LEAST_ROOM = 0.012  # share of the width that the number of a micro-batch needs


def timeline_figure(timelines: Mapping[str, Timeline], theme: Theme) -> Figure:
    """One panel a timeline on one scale: ranks downwards, forwards and backwards.

    Later chunks of a rank are paler; the number in a bar is the micro-batch. The last panel has the
    vectors a token that each hop sends forward, those of each timeline beside the others.
    """
    n_ranks = next(iter(timelines.values())).plan.n_stages
    n_panels = len(timelines) + 1
    figure, panels = new_panels(theme, n_panels, height=n_panels * (FRAME + RANK * n_ranks))
    end_s = max(each.total_s for each in timelines.values())
    for axes, (name, timeline) in zip(panels, timelines.items(), strict=False):
        _timeline(axes, timeline, end_s, theme)
        title = f"{name}: {timeline.total_s:.4g} s, idle {timeline.idle_share:.1%}"
        axes.set_title(title, color=theme.ink, fontsize=11, loc="left")
    _hops(panels[-1], timelines, theme)
    _legend(figure, theme)
    return figure


def _timeline(axes: Axes, timeline: Timeline, end_s: float, theme: Theme) -> None:
    plan = timeline.plan
    for span in timeline.spans:
        place = span.step.chunk // plan.n_stages
        width_s = span.end_s - span.start_s
        axes.barh(
            span.rank,
            width_s,
            BAR,
            left=span.start_s,
            color=theme.colors[COLORS[span.step.kind]],
            alpha=1 - (1 - PALEST) * place / max(plan.n_virtual - 1, 1),
            edgecolor=theme.paper,
            linewidth=0.5,
        )
        if width_s > LEAST_ROOM * end_s:
            color = theme.ink if 2 * place >= plan.n_virtual else theme.paper
            at = span.start_s + width_s / 2, span.rank, str(span.step.microbatch)
            axes.text(*at, ha="center", va="center", fontsize=7, color=color)
    axes.set_xlim(0, end_s)
    axes.set_ylim(plan.n_stages - 0.5, -0.5)
    axes.set_yticks(range(plan.n_stages))
    axes.grid(False)
    label_axes(axes, "seconds", "rank", theme)


def _hops(axes: Axes, timelines: Mapping[str, Timeline], theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    width = BAR / len(timelines)
    hops = next(iter(timelines.values())).plan.hops
    for i, (name, timeline) in enumerate(timelines.items()):
        places = [hop.sender + (i + 0.5) * width - BAR / 2 for hop in hops]
        vectors = [hop.n_vectors for hop in timeline.plan.hops]
        color = theme.colors[(0, 3, 4)[i]]
        axes.bar(places, vectors, width, color=color, label=name)
    names = [f"{hop.sender} to {hop.receiver}" for hop in hops]
    ticks(axes.set_xticks, names, 12)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", visible=False)
    label_axes(axes, "hop, from chunk to chunk", "vectors a token", theme)
    axes.legend(frameon=False, labelcolor=theme.ink, fontsize=10, loc="upper left")


def _legend(figure: Figure, theme: Theme) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=theme.colors[place], label=kind) for kind, place in COLORS.items()]
    label = "paler: a later chunk of the rank"
    figure.legend(
        handles=[*handles, Patch(color=theme.ink, alpha=PALEST, label=label)],
        loc="outside upper right",
        ncols=3,
        frameon=False,
        labelcolor=theme.ink,
        fontsize=10,
    )
