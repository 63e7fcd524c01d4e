"""Heat maps, one panel a run or a method: depth weights, and depth mixing matrices.

Mixing matrices are drawn as in figures 8 and 9 of arXiv:2603.15031: a row is a read, a column an
output. Methods differ in scale, which a norm after a read takes away, so each panel has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres.analysis.canvas import (
    LIGHT,
    WIDTH,
    Theme,
    escape,
    label_axes,
    new_panels,
    save,
    ticks,
)
from attnres.analysis.runs import Run
from attnres.analysis.weights import has_mixing, has_weights, is_untrained, weight_grid
from attnres.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

BAR = (-1.0, -0.25, 0.0, 0.05, 0.25, 1.0)  # shares of the largest weight, marked on the scale


def depth_weights(runs: Sequence[Run], theme: Theme) -> Figure:
    """Mean weight of each source in each reader; one panel a run that has depth weights."""
    from matplotlib.colors import PowerNorm

    runs = [run for run in runs if has_weights(run)]
    n_columns = min(len(runs), 2)
    n_rows = -(-len(runs) // n_columns)
    figure, panels = new_panels(theme, n_rows, n_columns, 1.0 + 3.8 * n_rows)
    image = None
    for axes, run in zip(panels, runs, strict=False):
        weights_RS, sources = weight_grid(run)
        image = axes.imshow(
            weights_RS,
            norm=PowerNorm(0.5, 0, 1),
            cmap="cividis",
            aspect="auto",
            interpolation="nearest",
        )
        title = run.name + (" (untrained)" if is_untrained(run) else "")
        axes.set_title(fill(escape(title), 44), color=theme.ink, fontsize=11)
        axes.grid(False)
        label_axes(axes, "source", "reader (depth)", theme)
        ticks(axes.set_xticks, sources, 8)
        ticks(axes.set_yticks, [*map(str, range(len(weights_RS) - 1)), "final"], 14)
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    assert image is not None, "a heat map needs a run with depth weights"
    bar = figure.colorbar(image, ax=panels, shrink=0.9, pad=0.02, ticks=[0, 0.05, 0.2, 0.5, 1])
    _label_bar(bar, "mean weight (square root scale)", theme)
    return figure


def depth_mixing(runs: Sequence[Run], theme: Theme) -> Figure:
    """Mixing matrices of the runs whose last probe has one."""
    mixings = {run.name: (run.last("probe") or {})["mixing"] for run in runs if has_mixing(run)}
    return mixing_figure(mixings, theme)


def save_mixing(mixings: Mapping[str, Any], path: Path | str) -> None:
    """`mixing_figure` as an .svg or .png file."""
    require("a figure", "report", "matplotlib")
    save(mixing_figure(mixings), Path(path))


def mixing_figure(mixings: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """One panel a method: the mean over tokens of M, positive weights blue and negative orange.

    Args:
        mixings: by name, [L+1, L+1] or, with tokens, [L+1, L+1, ...]: arrays, tensors or lists.
        theme: `LIGHT` or `DARK`.

    Raises:
        ValueError: no matrix, or one that is not square.
    """
    means = {name: _mean_over_tokens(name, mixing) for name, mixing in mixings.items()}
    if not means:
        raise ValueError("a figure of mixing matrices needs at least one")
    n_columns = min(len(means), 2 if len(means) <= 4 else 3)
    n_rows = -(-len(means) // n_columns)
    height = 0.6 + n_rows * ((WIDTH - 1.0) / max(n_columns, 2) + 0.5)
    figure, panels = new_panels(theme, n_rows, n_columns, height)
    for axes, (name, mean_RL) in zip(panels, means.items(), strict=False):
        _draw_matrix(axes, name, mean_RL, theme)
    for axes in panels[len(means) :]:
        axes.set_axis_off()
    _add_scale(figure, panels, any((mean_RL < 0).any() for mean_RL in means.values()), theme)
    return figure


def _mean_over_tokens(name: str, mixing: Any) -> np.ndarray:
    mixing_RLT = np.asarray(mixing, dtype=float)
    if mixing_RLT.ndim < 2 or mixing_RLT.shape[0] != mixing_RLT.shape[1]:
        shape = list(mixing_RLT.shape)
        raise ValueError(f"a mixing matrix is [L+1, L+1, ...], that of {name!r} is {shape}")
    return mixing_RLT.reshape(*mixing_RLT.shape[:2], -1).mean(axis=2)


def _draw_matrix(axes: Axes, name: str, mean_RL: np.ndarray, theme: Theme) -> None:
    """By the signed root of the share of the largest weight; grey where nothing is written yet."""
    largest = float(np.abs(mean_RL).max())
    share_RL = mean_RL / (largest or 1.0)
    not_yet_RL = np.triu(np.ones(mean_RL.shape, dtype=bool), k=1)
    root_RL = np.ma.masked_array(_root(share_RL), not_yet_RL)
    axes.imshow(root_RL, vmin=-1, vmax=1, cmap=_signed(theme), interpolation="nearest")
    axes.set_facecolor(theme.faint)
    title = f"{fill(escape(name), 40)}\nlargest {largest:.3g}"
    axes.set_title(title, color=theme.ink, fontsize=11)
    axes.grid(False)
    label_axes(axes, "output", "reader (depth)", theme)
    depths = [str(depth) for depth in range(1, len(mean_RL))]
    ticks(axes.set_xticks, ["emb", *depths], 8)
    ticks(axes.set_yticks, ["0", *depths[:-1], "final"], 12)


def _root(share: Any) -> np.ndarray:
    return np.sign(share) * np.sqrt(np.abs(share))


def _signed(theme: Theme) -> Colormap:
    """Orange below zero, the paper at zero, blue above: told apart under colour blindness."""
    from matplotlib.colors import LinearSegmentedColormap

    _, blue, orange, *_ = theme.colors
    return LinearSegmentedColormap.from_list("signed", [orange, theme.paper, blue])


def _add_scale(figure: Figure, panels: list[Axes], is_signed: bool, theme: Theme) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colors = ScalarMappable(norm=Normalize(-1, 1), cmap=_signed(theme))
    marks = [share for share in BAR if is_signed or share >= 0]
    bar = figure.colorbar(colors, ax=panels, shrink=0.9, pad=0.02, ticks=_root(marks))
    bar.ax.set_yticklabels([f"{share:g}" for share in marks])
    bar.ax.set_ylim(-1 if is_signed else 0, 1)
    _label_bar(bar, "weight over the panel's largest (square root scale)", theme)


def _label_bar(bar: Any, label: str, theme: Theme) -> None:
    bar.set_label(label, color=theme.ink)
    bar.ax.tick_params(colors=theme.ink)
    bar.outline.set_visible(False)
