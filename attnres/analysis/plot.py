"""Curves of a comparison, in a light and a dark theme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres.analysis.canvas import Theme, escape, label_axes, new_panels
from attnres.analysis.runs import Run
from attnres.analysis.table import differences, standard_for
from attnres.analysis.weights import entropy_over_training, has_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Style = dict[str, Any]  # keyword arguments of a line
LINES = ("-", "--", "-.", (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "v", "P")
BLOCK_END: Style = {"marker": "D", "ms": 9, "mfc": "none", "mew": 1.4, "linestyle": "none"}
LEGEND_WIDTH = 100  # letters
LEGEND_ROW = 0.24  # inches
WIDE = 20.0  # a ratio of largest to smallest beyond which an axis is logarithmic


def train_loss(runs: Sequence[Run], theme: Theme) -> Figure:
    """Training loss: a running mean over the values as logged, which are faint."""
    figure, (axes,) = new_panels(theme)
    styles = _styles(runs, theme)
    for run in runs:
        steps, losses = run.column("train", "loss")
        axes.plot(steps, losses, color=styles[run.name]["color"], alpha=0.45, linewidth=1.0)
        _plot(axes, steps, running_mean(losses), styles[run.name])
    label_axes(axes, "step", "train loss (nats a token)", theme)
    return _with_legend(figure, styles, theme)


def validation_loss(runs: Sequence[Run], theme: Theme) -> Figure:
    """Validation loss, and beside it what each run differs by from the standard run."""
    pairs = [(run, standard_for(run, runs)) for run in runs]
    points = {run.name: differences(run, std) for run, std in pairs if std is not None}
    figure, panels = new_panels(theme, n_columns=2 if any(points.values()) else 1)
    styles = _styles(runs, theme)
    for run in runs:
        _plot(panels[0], *run.column("validation", "loss"), styles[run.name])
    label_axes(panels[0], "step", "validation loss (nats a token)", theme)
    for axes in panels[1:]:
        axes.axhline(0, color=theme.ink, linewidth=0.9)
        for name, by_step in points.items():
            _plot(axes, list(by_step), list(by_step.values()), styles[name])
        label_axes(axes, "step", "minus standard (below 0 is better)", theme)
    return _with_legend(figure, styles, theme)


def output_rms(runs: Sequence[Run], theme: Theme) -> Figure:
    """Size of each sublayer's output, and of the running sum after it."""
    figure, panels = new_panels(theme, n_columns=2)
    titles = {
        "output_rms": "RMS of a sublayer's own output",
        "stream_rms": "RMS of the running sum",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        _by_depth(axes, runs, key, title, theme)
        _mark_block_ends(axes, runs, key, theme)
    return _with_legend(figure, _styles(runs, theme), theme, _block_end_key(runs, theme))


def gradient_norm(runs: Sequence[Run], theme: Theme) -> Figure:
    """Gradient of the loss at each sublayer's output."""
    figure, (axes,) = new_panels(theme)
    _by_depth(axes, runs, "grad_norm", "gradient norm at the output", theme)
    return _with_legend(figure, _styles(runs, theme), theme)


def weights_entropy(runs: Sequence[Run], theme: Theme) -> Figure:
    """Spread of the depth weights over training: 1 is an even mean, 0 a single source."""
    figure, (axes,) = new_panels(theme, height=3.2)
    styles = {run.name: _styles(runs, theme)[run.name] for run in runs if has_weights(run)}
    for run in runs:
        if run.name in styles:
            _plot(axes, *entropy_over_training(run), styles[run.name])
    axes.set_ylim(top=1.02)
    label_axes(axes, "step", "entropy, share of the largest", theme)
    return _with_legend(figure, styles, theme)


def running_mean(values: Sequence[float]) -> list[float]:
    """Centred mean over `window` values; shorter at both ends."""
    kernel = np.ones(window(len(values)))
    if not values:
        return []
    totals = np.convolve(np.asarray(values, dtype=float), kernel, mode="same")
    return list(totals / np.convolve(np.ones(len(values)), kernel, mode="same"))


def window(n_values: int) -> int:
    """Values in a running mean: a fifteenth, an odd number."""
    return max(1, n_values // 15 // 2 * 2 + 1)


def _styles(runs: Sequence[Run], theme: Theme) -> dict[str, Style]:
    """Colour, line and marker of each run, the same in every figure."""
    return {
        run.name: {
            "color": theme.colors[i % len(theme.colors)],
            "linestyle": LINES[i % len(LINES)],
            "marker": MARKERS[i % len(MARKERS)],
            "linewidth": 1.9,
            "markersize": 4.5,
        }
        for i, run in enumerate(runs)
    }


def _plot(axes: Axes, x: Sequence[float], y: Sequence[float], style: Style) -> None:
    axes.plot(x, y, markevery=max(1, len(x) // 25), **style)


def _by_depth(axes: Axes, runs: Sequence[Run], key: str, title: str, theme: Theme) -> None:
    values = []
    for run in runs:
        row = (run.last("probe") or {}).get(key) or []
        style = _styles(runs, theme)[run.name]
        _plot(axes, range(len(row)), row, style)
        values += [value for value in row if value > 0 and np.isfinite(value)]
    if values and max(values) > WIDE * min(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    label_axes(axes, "depth (sublayer)", title, theme)


def _mark_block_ends(axes: Axes, runs: Sequence[Run], key: str, theme: Theme) -> None:
    for run in runs:
        row = (run.last("probe") or {}).get(key) or []
        ends = [end for end in run.block_ends if end < len(row)]
        color = _styles(runs, theme)[run.name]["color"]
        axes.plot(ends, [row[end] for end in ends], color=color, **BLOCK_END)


def _block_end_key(runs: Sequence[Run], theme: Theme) -> list[Line2D]:
    from matplotlib.lines import Line2D

    if not any(run.block_ends for run in runs):
        return []
    return [Line2D([], [], color=theme.ink, label="end of a block", **BLOCK_END)]


def _with_legend(
    figure: Figure, styles: dict[str, Style], theme: Theme, more: Sequence[Line2D] = ()
) -> Figure:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=escape(name), **style) for name, style in styles.items()]
    handles += more
    n_columns = max(1, min(4, LEGEND_WIDTH // (8 + max(map(len, styles)))))
    n_rows = -(-len(handles) // n_columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (n_rows - 1))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=n_columns,
        frameon=False,
        fontsize=11,
        labelcolor=theme.ink,
        handlelength=3.2,
    )
    return figure
