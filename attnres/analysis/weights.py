"""Depth weights of a run, as its last probe and its probes over training have them."""

from collections.abc import Sequence

import numpy as np

from attnres.analysis.runs import Run


def has_weights(run: Run) -> bool:
    return bool((run.last("probe") or {}).get("weights"))


def has_mixing(run: Run) -> bool:
    return bool((run.last("probe") or {}).get("mixing"))


def is_untrained(run: Run) -> bool:
    """Whether the weights shown are those of zero queries, the same whatever is read."""
    return bool((run.last("probe") or {}).get("untrained"))


def weight_grid(run: Run) -> tuple[np.ndarray, list[str]]:
    """Weights as reader x source, NaN where a reader has no such source, and the sources' names."""
    return reader_grid(run, (run.last("probe") or {})["weights"])


def reader_grid(run: Run, rows: Sequence[Sequence[float]]) -> tuple[np.ndarray, list[str]]:
    """Figures by reader and source, laid out as `weight_grid` does."""
    closed = {end + 1 for end in run.block_ends}  # readers right after a block: no partial yet
    n_sources = len(closed) + 2 if closed else max(map(len, rows))
    names = [f"b{source}" for source in range(n_sources)]
    grid_RS = np.full((len(rows), n_sources), np.nan)
    for reader, row in enumerate(rows):
        n_blocks = len(row) - 1 if closed and reader and reader not in closed else len(row)
        grid_RS[reader, :n_blocks] = row[:n_blocks]
        if n_blocks < len(row):
            grid_RS[reader, -1] = row[-1]
    return grid_RS, [*names[:-1], "partial"] if closed else names


def entropy_over_training(run: Run) -> tuple[list[int], list[float]]:
    """Mean over readers of the weights' entropy, as a share of the largest possible, by step."""
    steps, spreads = [], []
    for row in run.rows("probe"):
        pairs = zip(row.get("weights_entropy") or [], row.get("weights") or [], strict=False)
        shares = [entropy / np.log(len(weights)) for entropy, weights in pairs if len(weights) > 1]
        if shares:
            steps.append(row["step"])
            spreads.append(float(np.mean(shares)))
    return steps, spreads
