"""What was compared and what was seen, in sentences made from recipes and metrics."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnres.analysis.runs import Run, differing_fields, entry
from attnres.analysis.table import residual_words, settings_of, standard_for
from attnres.analysis.weights import has_mixing, has_weights, is_untrained
from attnres.train.run_folder import flatten

GROWTH, RANK = 1.5, 0.7  # a trend has at least this ratio of last to first and this correlation
FALL, SHARE = 0.8, 0.75  # a reset falls at least to this part, at this share of the block ends

STREAM_METHODS = {  # what a sublayer reads and writes, where no reader attends over depth
    "standard": "Each sublayer reads one running sum and adds its output to it.",
    "highway": (
        "Each sublayer reads one stream; a gate of the token, or of each of its channels, then "
        "chooses between this stream and the sublayer's output."
    ),
    "rezero": (
        "Each sublayer reads one running sum and adds its output to it, times a learned number."
    ),
    "layer_scale": (
        "Each sublayer reads one running sum and adds its output to it, times a learned number a "
        "channel."
    ),
    "deep_norm": (
        "Each sublayer reads one stream; the stream, times a fixed number, and the sublayer's "
        "output are added and normed."
    ),
    "keel": (
        "As deep_norm, with a larger fixed number, and the first layer as in the standard residual."
    ),
    "laurel": (
        "Each sublayer reads one running sum and adds its output to it; learned weights, a "
        "low-rank map of the sum or earlier sums come in as the settings say."
    ),
    "hyper": (
        "There are several streams. Each sublayer reads a learned mix of them, adds a share of its "
        "output to each, and the streams are mixed by a learned matrix."
    ),
    "mhc": "As hyper, with streams mixed so that their mean is kept.",
    "delta_rule": (
        "Each sublayer reads one stream; its output gives the direction in which the stream is "
        "overwritten by a learned number."
    ),
}

LAYER_METHODS = {  # what a sublayer reads, where weights of many earlier states are no softmax
    "denseformer": (
        "Each sublayer reads and adds to one running sum; after each layer it becomes a weighted "
        "sum of what it was after the layers before, with one learned number for each."
    ),
    "muddformer": (
        "As denseformer, with weights that every token makes of its own state, and with a weighted "
        "sum each for query, key, value and the running sum where the settings say so."
    ),
    "grn": (
        "Each layer reads a weighted sum of the outputs of all layers before it, by learned "
        "numbers and, in version 3, by what an output holds; the MLP reads that and the "
        "attention's output."
    ),
    "window": (
        "Before each sublayer, a learned query weighs the embedding, the last outputs and, where "
        "the settings say so, the sum of those before; the sublayer reads their weighted mean."
    ),
    "delta": (
        "Each sublayer reads the running sum of all outputs, to which is added a weighted mean of "
        "its parts, the embedding and the sums of blocks, by a learned query."
    ),
}

STARTS_ANEW = {  # where the last output is added to no sum of all before it
    "window": "every sublayer is a block of its own",
    "grn": "every layer begins a sum of its own",
}


def compared(runs: Sequence[Run]) -> list[str]:
    """Model, data and length of training, where they are the same in all runs."""
    return [words for words in (_model_words(runs), _training_words(runs)) if words]


def methods(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each residual compared, and how it joins sublayers."""
    return list(dict.fromkeys((residual_words(run), _method_words(run)) for run in runs))


def seeds(runs: Sequence[Run]) -> list[str]:
    """How many seeds there are, and how far the loss moves from one to another."""
    if not _has_seeds(runs):
        return [
            "Every configuration was run with one seed. A difference no larger than the change "
            "from one seed to the next means nothing, and one seed cannot show how large that "
            "change is: repeat the runs with other seeds before believing a small difference."
        ]
    return [_spread(group) for group in _same_but_seed(runs)]


def best(runs: Sequence[Run]) -> str:
    """The lowest validation loss at the last step that all runs have, on the same text."""
    other_text = [field for field in differing_fields(runs) if field.split(".")[0] == "data"]
    if other_text:
        fields = ", ".join(other_text)
        return f"The losses of the runs are not comparable: they differ in {fields}."
    curves = [dict(zip(*run.column("validation", "loss"), strict=True)) for run in runs]
    shared = set.intersection(*(set(curve) for curve in curves))
    if len(runs) < 2 or not shared:
        return ""
    step = max(shared)
    pairs = zip(runs, curves, strict=True)
    losses = {run.name: c[step] for run, c in pairs if math.isfinite(c[step])}
    if not losses:
        return f"No run has a finite validation loss at step {step:,}."
    lowest = min(losses, key=losses.__getitem__)
    words = f"Lowest validation loss at step {step:,}: {lowest}, {losses[lowest]:.4f}."
    run = next(run for run in runs if run.name == lowest)
    standard = standard_for(run, runs)
    if standard is not None and standard.name in losses:
        difference = losses[standard.name] - losses[lowest]
        words = f"{words[:-1]}, which is {difference:.4f} below {standard.name}."
    return words if _has_seeds(runs) else f"{words} One seed each: see the note below."


def unfinished(runs: Sequence[Run]) -> list[str]:
    """Runs that have not ended, or that hold values which are not numbers."""
    words = []
    for run in runs:
        if not run.is_finished:
            total = "" if run.n_steps is None else f" of {run.n_steps:,}"
            words.append(f"{run.name} is unfinished: {run.n_steps_done:,}{total} steps so far.")
        for kind in ("train", "validation"):
            steps, losses = run.column(kind, "loss")
            bad = [s for s, loss in zip(steps, losses, strict=True) if not math.isfinite(loss)]
            if bad:
                words.append(f"{run.name}: the {kind} loss is not finite from step {bad[0]:,}.")
    return words


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


def probe_steps(runs: Sequence[Run]) -> str:
    """When the last probe of each run was."""
    steps = {run.name: row["step"] for run in runs if (row := run.last("probe")) is not None}
    if len(set(steps.values())) == 1:
        return f"At step {next(iter(steps.values())):,}."
    return " ".join(f"{name}: at step {step:,}." for name, step in steps.items())


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


def _method_words(run: Run) -> str:
    words = STREAM_METHODS.get(run.method) or LAYER_METHODS.get(run.method)
    if words is not None:
        return words
    if run.method not in ("attn_res", "two_phase", "sum", "centered"):
        return ""
    reads = "the embedding and the output of every sublayer before it"
    if run.block_ends:
        reads = "the embedding, the sum of each finished block and the sum so far of its own"
    mean = "mean" if run.method in ("attn_res", "two_phase") else "mean, times their number"
    words = (
        f"Before each sublayer, a learned query weighs {reads}; "
        f"the sublayer reads their weighted {mean}."
    )
    if run.method == "two_phase":
        words += (
            " What is finished is read once for several sublayers; the model is that of attn_res."
        )
    if run.method == "centered":
        words += " It is computed as the running sum of all outputs and what the weights add to it."
    changes = settings_of(run) if run.method == "attn_res" else []
    return f"An ablation, with {', '.join(changes)}, of this: {words}" if changes else words


def _model_words(runs: Sequence[Run]) -> str:
    n_layers, dim = _shared(runs, "model.n_layers"), _shared(runs, "model.dim")
    family, sizes = _shared(runs, "model.family"), _parameter_words(runs)
    what = f"{len(runs)} language models" if len(runs) > 1 else "One language model"
    words = what if family is None else f"{what} of the {family} family"
    facts = []
    if n_layers is not None:
        facts += [f"{n_layers} layers, that is {2 * n_layers} sublayers (attention and MLP)"]
    facts += [] if dim is None else [f"a width of {dim}"]
    facts += [sizes] if sizes else []
    return words + (f": {', '.join(facts)}." if facts else ".")


def _parameter_words(runs: Sequence[Run]) -> str:
    starts = (run.last("start") or {} for run in runs)
    counts = [row["n_params"] for row in starts if row.get("n_params")]
    if not counts:
        return ""
    low, high = _millions(min(counts)), _millions(max(counts))
    return f"{low} million parameters" if low == high else f"{low} to {high} million parameters"


def _training_words(runs: Sequence[Run]) -> str:
    n_steps, batch, length = (_shared(runs, key) for key in ("n_steps", "batch_size", "seq_len"))
    data = _shared(runs, "data")
    words = ""
    if n_steps and batch and length:
        words = (
            f"Each is trained for {n_steps:,} steps of {batch:,} sequences of {length:,} tokens, "
            f"{_millions(n_steps * batch * length)} million tokens in all."
        )
    if not isinstance(data, dict) or not data:
        return words
    facts = ", ".join(f"{key} {_plain(value)}" for key, value in flatten(data).items())
    return f"{words} Data: {facts}.".strip()


def _shared(runs: Sequence[Run], dotted: str) -> Any:
    values = [entry(run.recipe, dotted) for run in runs]
    return values[0] if all(value == values[0] for value in values) else None


def _has_seeds(runs: Sequence[Run]) -> bool:
    return any(len(group) > 1 for group in _same_but_seed(runs))


def _same_but_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in groups that differ by the seed alone, one run a seed."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        fields = flatten(run.recipe).items()
        same = {k: v for k, v in fields if k != "name" and k.rpartition(".")[2] != "seed"}
        groups.setdefault(json.dumps(same, sort_keys=True), {}).setdefault(run.seed, run)
    return [list(group.values()) for group in groups.values()]


def _spread(group: list[Run]) -> str:
    names = ", ".join(run.name for run in group)
    rows = [run.last("validation") for run in group if run.is_finished]
    losses = [row["loss"] for row in rows if row is not None]
    if len(losses) < 2:
        return f"{names}: {len(group)} {'seed' if len(group) == 1 else 'seeds'}."
    return (
        f"{names}: {len(group)} seeds, final validation loss {np.mean(losses):.4f} on average, "
        f"standard deviation {np.std(losses, ddof=1):.4f} over {len(losses)} finished runs."
    )


def _millions(count: float) -> str:
    return f"{count / 1e6:,.3g}" if count < 1e9 else f"{count / 1e6:,.0f}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
