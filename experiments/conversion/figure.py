"""Draws figures/losses.png, light and dark, from results.csv.

python experiments/conversion/figure.py
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from runs import HERE, LEARNING_RATES, Row, read_rows

from attnres.analysis import canvas
from attnres.analysis.canvas import Theme

SIZE = (canvas.WIDTH, 2.9)  # inches


def losses(rows: Sequence[Row], theme: Theme) -> Figure:
    """A point a seed and a stroke at their mean, the first arm on top."""
    final = [row for row in rows if row.phase == "final"]
    figure = Figure(figsize=SIZE, layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.axvline(final[0].report_before, color=theme.ink, linewidth=0.9, label="before training")
    for place, arm in enumerate(LEARNING_RATES):
        after = [row.report_after for row in final if row.arm == arm]
        color = theme.colors[1]
        seeds = "after, each seed" if place == 0 else None
        mean = "after, their mean" if place == 0 else None
        axes.plot(after, [place] * len(after), "o", mfc="none", color=color, label=seeds)
        axes.plot(statistics.fmean(after), place, "|", color=color, markersize=22, label=mean)
    axes.set_yticks(range(len(LEARNING_RATES)), list(LEARNING_RATES))
    axes.set_ylim(len(LEARNING_RATES) - 0.5, -0.5)
    axes.set_facecolor(theme.paper)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.ink)
    axes.tick_params(colors=theme.ink, labelsize=10)
    axes.grid(color=theme.faint, linewidth=0.6)
    axes.set_xlabel("loss on held-out text (nats a token)", color=theme.ink, fontsize=11)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, labelcolor=theme.ink)
    return figure


def main() -> None:
    rows = read_rows(HERE / "results.csv")
    folder = HERE / "figures"
    folder.mkdir(exist_ok=True)
    for name, theme in (("losses", canvas.LIGHT), ("losses-dark", canvas.DARK)):
        canvas.save(losses(rows, theme), folder / f"{name}.png")


if __name__ == "__main__":
    main()
