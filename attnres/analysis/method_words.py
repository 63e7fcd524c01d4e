"""How each residual joins sublayers, in a sentence."""

from attnres.analysis.runs import Run
from attnres.analysis.table import settings_of

STREAM_METHODS = {  # what a sublayer reads and writes, where no reader attends over depth
    "standard": "Each sublayer reads one running sum and adds its output to it.",
    "scaled_embedding": (
        "Each sublayer reads one running sum, begun by a multiple of the embedding, and adds its "
        "output to it."
    ),
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


def method_words(run: Run) -> str:
    """Of a run's residual, its ablations named; empty where it is none of ours."""
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
