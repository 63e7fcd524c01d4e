"""What changes over depth while a run learns, in one line a probe.

Readers are told apart by what they come before: attention at even depths, MLP at odd ones. Shares
and locality are means over readers of at least three sources, since one or two leave no choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnres.analysis.runs import Row, Run
from attnres.analysis.table import differences
from attnres.analysis.weights import reader_grid

LEAST_SOURCES = 3


@dataclass(frozen=True, kw_only=True)
class Depths:
    """One probe. None is what the method has not, or what is not finite yet."""

    step: int
    growth: float | None  # p of RMS ~ depth^p, of the running sum; 1/2 where outputs are unlike
    output_growth: float | None  # the same of the sublayers' own outputs
    reset: float | None  # RMS right after a block end over that before it, median
    gradient_ratio: float | None  # largest over smallest norm at an output
    entropy: float | None  # of depth weights, share of the largest possible
    newest_before_attention: float | None  # weight of the newest source
    newest_before_mlp: float | None
    newest_is_largest: float | None  # share of readers
    embedding_before_attention: float | None
    embedding_before_mlp: float | None
    sink: str | None  # source, neither embedding nor newest, that weighs most
    sink_weight: float | None  # over an even share, mean over readers


def dynamics(run: Run) -> list[Depths]:
    """A line for every probe."""
    return [_depths(run, row) for row in run.rows("probe")]


def loss_gap(run: Run, standard: Run) -> list[tuple[int, float]]:
    """Validation loss less standard's, by step: below 0 is better than standard."""
    return sorted(differences(run, standard).items())


def widening(gap: Sequence[tuple[int, float]]) -> float | None:
    """How much larger the gain is at the end than halfway there, nats a token.

    None with fewer than three points.
    """
    if len(gap) < 3:
        return None
    last = gap[-1][0]
    _, halfway = min(gap[:-1], key=lambda each: abs(each[0] - last / 2))
    return halfway - gap[-1][1]


def growth_exponent(values: Sequence[float] | None) -> float | None:
    """Slope of log value over log depth, depth counted from 1."""
    found = np.array(values or [], dtype=float)
    if found.size < 2 or not np.isfinite(found).all() or found.min() <= 0:
        return None
    return float(np.polyfit(np.log(np.arange(1, found.size + 1)), np.log(found), 1)[0])


def ratio(values: Sequence[float] | None) -> float | None:
    """Largest over smallest."""
    found = np.array(values or [], dtype=float)
    if not found.size or not np.isfinite(found).all() or found.min() <= 0:
        return None
    return float(found.max() / found.min())


def _depths(run: Run, row: Row) -> Depths:
    rows = row.get("weights") or []
    before = [rows[0:-1:2], rows[1:-1:2]]  # attention, MLP; the last is the output read
    newest = [_mean(part, lambda weights: weights[-1]) for part in before]
    embedding = [_mean(part, lambda weights: weights[0]) for part in before]
    sink, sink_weight = _sink(run, rows) if rows else (None, None)
    return Depths(
        step=row["step"],
        growth=growth_exponent(row.get("stream_rms")),
        output_growth=growth_exponent(row.get("output_rms")),
        reset=_reset(run, row.get("stream_rms") or []),
        gradient_ratio=ratio(row.get("grad_norm")),
        entropy=_entropy(row, rows),
        newest_before_attention=newest[0],
        newest_before_mlp=newest[1],
        newest_is_largest=_mean(rows[:-1], lambda weights: float(weights[-1] == max(weights))),
        embedding_before_attention=embedding[0],
        embedding_before_mlp=embedding[1],
        sink=sink,
        sink_weight=sink_weight,
    )


def _mean(rows, figure) -> float | None:
    values = [figure(weights) for weights in rows if len(weights) >= LEAST_SOURCES]
    return float(np.mean(values)) if values else None


def _entropy(row: Row, rows: Sequence[Sequence[float]]) -> float | None:
    pairs = zip(row.get("weights_entropy") or [], rows, strict=False)
    shares = [entropy / math.log(len(weights)) for entropy, weights in pairs if len(weights) > 1]
    return float(np.mean(shares)) if shares else None


def _reset(run: Run, rms: Sequence[float]) -> float | None:
    inner = [end for end in run.block_ends if end + 1 < len(rms)]
    return float(np.median([rms[end + 1] / rms[end] for end in inner])) if inner else None


def _sink(run: Run, rows: Sequence[Sequence[float]]) -> tuple[str | None, float | None]:
    grid_RS, names = reader_grid(run, rows)
    means: dict[str, float] = {}
    for source, name in enumerate(names[1:], start=1):
        if name == "partial":
            continue
        over_even = [
            grid_RS[reader, source] * len(rows[reader])
            for reader in range(len(rows))
            if np.isfinite(grid_RS[reader, source])
            and np.isfinite(grid_RS[reader, source + 1 :]).any()  # it is not the newest
        ]
        if over_even:
            means[name] = float(np.mean(over_even))
    if not means:
        return None, None
    sink = max(means, key=means.__getitem__)
    return sink, means[sink]
