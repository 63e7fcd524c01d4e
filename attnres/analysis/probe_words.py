"""What the probes of runs show, in sentences."""

import statistics
from collections.abc import Sequence

import numpy as np

from attnres.analysis.runs import Run
from attnres.analysis.weights import has_mixing, has_weights, is_untrained

GROWTH, RANK = 1.5, 0.7  # a trend has at least this ratio of last to first and this correlation
FALL, SHARE = 0.8, 0.75  # a reset falls at least to this part, at this share of the block ends

STARTS_ANEW = {  # where the last output is added to no sum of all before it
    "window": "every sublayer is a block of its own",
    "grn": "every layer begins a sum of its own",
}


def stream_trends(runs: Sequence[Run]) -> list[str]:
    """Whether the running sum grows with depth, and whether a block end resets it."""
    return [_stream_trend(run) for run in runs]


def gradient_trends(runs: Sequence[Run]) -> list[str]:
    """How uneven the gradient is over depth."""
    words = []
    for run in runs:
        norms = _last_list(run, "grad_norm")
        if norms.size and np.isfinite(norms).all() and norms.min() > 0:
            ratio, at = norms.max() / norms.min(), int(norms.argmax())
            words.append(
                f"{run.name}: the largest gradient, at depth {at}, is {ratio:.3g} times "
                "the smallest."
            )
    return words


def untrained(runs: Sequence[Run]) -> list[str]:
    """Runs whose depth weights say nothing yet."""
    return [
        f"{run.name}: depth weights are untrained. Every query is zero, as in a model just made or "
        "converted, so each source weighs the same whatever the text."
        for run in runs
        if has_weights(run) and is_untrained(run)
    ]


def mixing(runs: Sequence[Run]) -> list[str]:
    """What a run's mixing matrix says in numbers."""
    return [_mixing_words(run) for run in runs if has_mixing(run)]


def probe_steps(runs: Sequence[Run]) -> str:
    """When the last probe of each run was."""
    steps = {run.name: row["step"] for run in runs if (row := run.last("probe")) is not None}
    if len(set(steps.values())) == 1:
        return f"At step {next(iter(steps.values())):,}."
    return " ".join(f"{name}: at step {step:,}." for name, step in steps.items())


def _mixing_words(run: Run) -> str:
    probe = run.last("probe") or {}
    reach, sums = probe["mixing_reach"], probe["mixing_row_sums"]
    sink = probe["mixing_sink"]
    which = "the embedding" if sink == 0 else f"the output of depth {sink - 1}"
    return (
        f"{run.name}: off-diagonal rank {probe['mixing_rank']}; rows sum to {min(sums):.3g} to "
        f"{max(sums):.3g}; the read before the final norm reaches {reach[-1]:.3g} outputs back on "
        f"average; of what is not newest, {which} weighs most, {probe['mixing_sink_share']:.2g} of "
        "a row."
    )


def _stream_trend(run: Run) -> str:
    if run.last("probe") is None:
        return f"{run.name}: no probe yet."
    rms = _last_list(run, "stream_rms")
    if rms.size == 0:
        return f"{run.name}: no running sum."
    if not np.isfinite(rms).all() or rms.min() <= 0:
        return f"{run.name}: the last probe holds values that are not positive numbers."
    sums_all = run.method in ("standard", "centered", "delta")
    if run.block_ends and not sums_all:
        return _reset(run, rms)
    if run.method in STARTS_ANEW or (run.layout_sizes and not sums_all):
        why = STARTS_ANEW.get(run.method, STARTS_ANEW["window"])
        return (
            f"{run.name}: {why}, so no sum builds up; "
            f"the RMS lies between {rms.min():.3g} and {rms.max():.3g}."
        )
    return f"{run.name}: the running sum {_growth(rms)}."


def _growth(rms: np.ndarray) -> str:
    ratio, rank = rms[-1] / rms[0], rank_correlation(rms)
    if ratio >= GROWTH and rank >= RANK:
        trend = "grows with depth"
    elif ratio <= 1 / GROWTH and rank <= -RANK:
        trend = "shrinks with depth"
    else:
        trend = "shows no clear growth with depth at this size"
    return (
        f"{trend}: its RMS after the last sublayer is {ratio:.3g} times that after the first "
        f"(rank correlation with depth {rank:.2f})"
    )


def _reset(run: Run, rms: np.ndarray) -> str:
    inner = [end for end in run.block_ends if end + 1 < rms.size]
    if not inner:
        return f"{run.name}: one block only, so there is no block end to fall back at."
    ratios = [rms[end + 1] / rms[end] for end in inner]
    n_falls = sum(ratio < 1 for ratio in ratios)
    ratio = statistics.median(ratios)
    falls = ratio <= FALL and n_falls >= SHARE * len(inner)
    trend = "falls back" if falls else "shows no clear fall at this size"
    return (
        f"{run.name}: the running sum {trend} at block ends: it is lower after {n_falls} of "
        f"{len(inner)}, where the next sublayer starts a new sum with a median of {ratio:.2f} "
        f"times the RMS before. Its largest RMS is {rms.max():.3g}."
    )


def rank_correlation(values: np.ndarray) -> float:
    """Spearman's correlation of values with their place; 0 where all are equal."""
    ranks = (values[:, None] > values).sum(1) + (values[:, None] == values).sum(1) / 2
    if values.size < 2 or ranks.std() == 0:
        return 0.0
    return float(np.corrcoef(ranks, np.arange(values.size))[0, 1])


def _last_list(run: Run, key: str) -> np.ndarray:
    return np.array((run.last("probe") or {}).get(key) or [], dtype=float)
