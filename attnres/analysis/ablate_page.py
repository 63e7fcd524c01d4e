"""Effects of removed sources and layers: of a folder of runs, as figures and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres.analysis.ablate import Effects, ablate
from attnres.analysis.canvas import Theme, escape, label_axes, new_panels, ticks
from attnres.analysis.run_styles import styles
from attnres.analysis.runs import Run
from attnres.analysis.table import Column, number_text
from attnres.analysis.weights import has_weights, reader_grid, weight_grid
from attnres.train.data import DataConfig, TokenData, load_data, pack, validation_batches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Sequence[tuple[Run, Effects]]


def ablate_runs(runs: Sequence[Run], n_sequences: int) -> list[tuple[Run, Effects]]:
    """Every finished run, on the same held-out sequences of its own text."""
    from attnres.models.pretrained import load_pretrained

    texts: dict[DataConfig, TokenData] = {}
    found = []
    for run in runs:
        if not (run.path / "model").is_dir():
            continue
        if run.data not in texts:
            texts[run.data] = load_data(run.data)
        held_out_RT = pack(texts[run.data].validation_tokens, run.seq_len)[:n_sequences]
        tokens_BT = next(validation_batches(held_out_RT, n_sequences))
        found.append((run, ablate(load_pretrained(run.path / "model").model, tokens_BT)))
    if not found:
        raise ValueError("no run has a model: only finished runs can be ablated")
    return found


def columns(found: Found) -> list[Column]:
    """A line a run: what the removal of one layer costs, and what a weight says of a source."""
    agree = [agreement(run, effects) for run, effects in found]
    layers = [np.array(effects.layers) for _, effects in found]
    return [
        Column(title="Run", cells=[run.name for run, _ in found], is_number=False),
        Column(title="Loss", cells=[f"{effects.loss:.4f}" for _, effects in found]),
        Column(title="Without a layer, median", cells=[_loss(np.median(x)) for x in layers]),
        Column(title="least", cells=[f"{_loss(x.min())} (layer {x.argmin()})" for x in layers]),
        Column(title="most", cells=[f"{_loss(x.max())} (layer {x.argmax()})" for x in layers]),
        Column(
            title="Weight ~ loss, rank correlation",
            cells=[number_text(x, "z.2f") for x in agree],
        ),
    ]


def agreement(run: Run, effects: Effects) -> float | None:
    """Spearman's correlation of a source's mean weight with the loss without it.

    The median over the readers of four sources or more; None where there is none.
    """
    if effects.sources is None or not has_weights(run):
        return None
    weights = (run.last("probe") or {})["weights"]
    pairs = [pair for pair in zip(weights, effects.sources, strict=True) if len(pair[0]) > 3]
    found = [_rank_correlation(*map(np.array, pair)) for pair in pairs]
    return float(np.median(found)) if found else None


def _rank_correlation(a_S: np.ndarray, b_S: np.ndarray) -> float:
    a_S, b_S = (each.argsort().argsort() - (len(each) - 1) / 2 for each in (a_S, b_S))
    return float(a_S @ b_S / (a_S @ a_S))


def to_json(found: Found) -> dict[str, Any]:
    return {
        run.name: {"loss": each.loss, "layers": each.layers, "sources": each.sources}
        for run, each in found
    }


def layers_figure(found: Found, theme: Theme) -> Figure:
    """Loss without each layer, a line a run."""
    figure, (axes,) = new_panels(theme)
    shown = styles([run for run, _ in found], theme)
    for (run, effects), style in zip(found, shown, strict=True):
        axes.plot(effects.layers, label=escape(run.name), **style)
    axes.axhline(0, color=theme.ink, linewidth=0.9)
    label_axes(axes, "layer removed", "loss gained (nats a token)", theme)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, labelcolor=theme.ink)
    return figure


def sources_figure(run: Run, effects: Effects, theme: Theme) -> Figure:
    """The heat map of weights, and beside it the loss without each source in each reader."""
    from matplotlib.colors import PowerNorm, SymLogNorm

    assert effects.sources is not None, f"{run.name} has no sources to remove"
    rows = [[np.nan if x is None else x for x in row] for row in effects.sources]
    grid_RS, sources = reader_grid(run, rows)
    largest = max(float(np.nanmax(np.abs(grid_RS))), 1e-9)
    scale = SymLogNorm(largest / 100, vmin=-largest, vmax=largest)
    n_panels = 2 if has_weights(run) else 1
    figure, panels = new_panels(theme, 1, n_panels, 4.8)
    if has_weights(run):
        weights_RS, _ = weight_grid(run)
        even = PowerNorm(0.5, 0, 1)
        _draw(panels[0], weights_RS, sources, even, "cividis", "mean weight", theme)
    words = "loss without the source (nats a token)"
    _draw(panels[-1], grid_RS, sources, scale, "PuOr_r", words, theme)
    figure.suptitle(escape(run.name), color=theme.ink, fontsize=11)
    return figure


def _draw(
    axes: Axes,
    grid_RS: np.ndarray,
    sources: list[str],
    norm: Any,
    cmap: str,
    words: str,
    theme: Theme,
) -> None:
    image = axes.imshow(grid_RS, norm=norm, cmap=cmap, aspect="auto", interpolation="nearest")
    axes.grid(False)
    label_axes(axes, "source", "reader (depth)", theme)
    ticks(axes.set_xticks, sources, 8)
    ticks(axes.set_yticks, [*map(str, range(len(grid_RS) - 1)), "final"], 14)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(words, color=theme.ink)
    bar.ax.tick_params(colors=theme.ink)


def _loss(value: float) -> str:
    return number_text(value, "+z.4f")
