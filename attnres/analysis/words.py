"""What was compared and what came out, in sentences made from recipes and metrics."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnres.analysis.method_words import method_words
from attnres.analysis.runs import Run, differing_fields, entry
from attnres.analysis.table import residual_words, standard_for
from attnres.train.run_folder import flatten


def compared(runs: Sequence[Run]) -> list[str]:
    """Model, data and length of training, where they are the same in all runs."""
    return [words for words in (_model_words(runs), _training_words(runs)) if words]


def methods(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each residual compared, and how it joins sublayers."""
    return list(dict.fromkeys((residual_words(run), method_words(run)) for run in runs))


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
