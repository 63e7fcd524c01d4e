"""Named mistakes of the op."""

from collections.abc import Callable
from typing import Any

from attnres.conformance import wrong_op_steps as op
from attnres.conformance.mistake import Mistake


def _op(name: str, what: str, seen_by: str, mend: str, **steps: Callable[..., Any]) -> Mistake:
    return Mistake(name, "op", what, seen_by, mend, steps)


OP_MISTAKES = (
    _op(
        "no_key_norm",
        "Logits are taken of sources that were not normed.",
        "Whoever has sources of unequal size: the largest takes all the weight.",
        "key = rms_norm(source) * key_weight.",
        keys=op.raw_keys,
    ),
    _op(
        "l2_norm",
        "Keys are divided by their length instead of their root mean square.",
        "Whoever trains: logits are sqrt(D) times too small, so that queries hardly choose.",
        "Divide by sqrt(mean(source^2) + eps).",
        keys=op.l2_keys,
    ),
    _op(
        "layer_norm",
        "Keys are normed by LayerNorm, which takes their mean away.",
        "Whoever loads weights from elsewhere: all logits are a little off.",
        "RMSNorm: do not subtract the mean.",
        keys=op.layer_norm_keys,
    ),
    _op(
        "no_key_weight",
        "The gain of the key norm is ignored.",
        "Whoever loads trained weights; at the start gains are one and nothing shows.",
        "Multiply the normed source by key_weight.",
        keys=op.unweighted_keys,
    ),
    _op(
        "one_plus_key_weight",
        "The gain is taken as 1 + key_weight, the convention of Gemma.",
        "Whoever loads weights from elsewhere: logits double at the start.",
        "Multiply by key_weight itself, which starts at one.",
        keys=op.one_plus_weight,
    ),
    _op(
        "eps_outside_root",
        "eps is added to the root mean square instead of the mean square.",
        "Whoever has sources as small as an embedding of deviation 0.02.",
        "Divide by sqrt(mean(source^2) + eps).",
        keys=op.eps_outside_root,
    ),
    _op(
        "own_eps",
        "The eps that is given is ignored and 1e-6 taken.",
        "Whoever loads a model of another eps, such as 1e-5.",
        "Hand eps through to the norm of the keys.",
        keys=op.own_eps,
    ),
    _op(
        "mean_over_padding",
        "The mean square is taken over the width padded to a power of two.",
        "Whoever has a width that is no power of two, such as 7168.",
        "Divide the sum of squares by D, not by the size of the tile.",
        keys=op.padded_mean,
    ),
    _op(
        "detached_keys",
        "No gradient flows to the sources through the keys.",
        "Whoever trains: forward is right, and sources learn from their values alone.",
        "Compute keys from the sources themselves, not from .detach() or under no_grad.",
        keys=op.detached_keys,
    ),
    _op(
        "cast_before_weight",
        "The normed key is rounded to the dtype of the source before the gain.",
        "Whoever runs in bfloat16 with large queries: logits are off by tenths.",
        "Keep float32 from the norm to the softmax.",
        keys=op.cast_before_weight,
    ),
    _op(
        "scaled_logits",
        "Logits are divided by sqrt(D), as in attention between tokens.",
        "Whoever loads trained weights: every softmax is flatter than it was.",
        "No scale: logit = query . key.",
        logits=op.scaled_logits,
    ),
    _op(
        "ignores_query",
        "Every source gets the same weight: queries are not used.",
        "Whoever trains: queries stay where they are; at the start nothing shows.",
        "Take the logits of the softmax from the query.",
        logits=op.zero_logits,
    ),
    _op(
        "recency_bias",
        "The latest source has a bias of 3 on its logit.",
        "Whoever loads weights from elsewhere, or starts at zero queries: it is no mean.",
        "No bias: zero queries weigh all sources alike.",
        logits=op.recent_logits,
    ),
    _op(
        "no_max_subtraction",
        "exp is taken of the logits as they are.",
        "Whoever trains long: a logit beyond 88 gives NaN in float32.",
        "Subtract the largest logit before exp, or use a softmax that does.",
        weights=op.overflowing,
    ),
    _op(
        "sigmoid_weights",
        "Weights are sigmoids of the logits and do not sum to one.",
        "Everyone: a zero query gives half the sum instead of the mean.",
        "One softmax over all sources of a token.",
        weights=op.sigmoids,
    ),
    _op(
        "softmax_over_tokens",
        "The softmax runs over tokens instead of sources.",
        "Everyone; and a language model sees tokens to come.",
        "softmax over the axis of the sources.",
        weights=op.over_tokens,
    ),
    _op(
        "slope_without_mean",
        "The backward of the softmax leaves out the mean of the slopes.",
        "Whoever trains: forward is right; one source alone moves its query.",
        "s_i = alpha_i (v_i . e - sum_j alpha_j v_j . e).",
        weights=op.without_mean_slope,
    ),
    _op(
        "detached_weights",
        "No gradient flows through the weights.",
        "Whoever trains: forward is right, and no query ever leaves zero.",
        "Keep the softmax in the graph.",
        weights=op.detached_weights,
    ),
    _op(
        "normed_values",
        "The normed sources are mixed instead of the sources.",
        "Whoever has sources of unequal size: large ones lose their size.",
        "Only keys are normed: mix = sum_i alpha_i source_i.",
        values=op.unit_values,
    ),
    _op(
        "keys_as_values",
        "The keys, normed and with their gain, are mixed instead of the sources.",
        "Whoever has sources of unequal size, or trained gains.",
        "Only keys are normed: mix = sum_i alpha_i source_i.",
        values=op.key_values,
    ),
    _op(
        "detached_values",
        "No gradient flows to the sources through the values.",
        "Whoever trains: forward is right, and early sublayers hardly learn.",
        "Mix the sources themselves.",
        values=op.detached_values,
    ),
    _op(
        "sum_of_weighted",
        "The mix is multiplied by the number of sources: a sum instead of a mean.",
        "Whoever loads weights from elsewhere; a norm behind it hides it up to its eps.",
        "mix = sum_i alpha_i source_i, with weights that sum to one.",
        mix=op.summed,
    ),
    _op(
        "keeps_residual",
        "The latest source is added to the mix, as a residual.",
        "Everyone: one source alone comes back doubled.",
        "Return the mix alone; the latest source is among the sources already.",
        mix=op.with_residual,
    ),
    _op(
        "returns_latest_source",
        "The mix is not used: the latest source is returned.",
        "Whoever trains: queries get no gradient.",
        "Return the mix.",
        mix=op.last_value,
    ),
    _op(
        "returns_plain_sum",
        "The mix is not used: the plain sum of the sources is returned.",
        "Whoever trains: it is the ordinary residual, and queries get no gradient.",
        "Return the mix.",
        mix=op.plain_sum,
    ),
    _op(
        "drops_row_tail",
        "Channels after the last multiple of 8 are left zero.",
        "Whoever has a width that is no multiple of a vector of the machine.",
        "Mask or finish the rest of each row.",
        mix=op.without_tail,
    ),
    _op(
        "drops_sources",
        "Sources after the 32nd are left out without a word.",
        "Whoever runs Full AttnRes over 16 layers or more.",
        "Loop over all sources, or refuse so many.",
        sources=op.first_32,
    ),
    _op(
        "narrow_arithmetic",
        "All arithmetic is in the dtype of the sources.",
        "Whoever runs in bfloat16: weights are off by tenths where logits are large.",
        "Compute in float32 and cast the mix once.",
        arithmetic=op.narrow,
    ),
)
