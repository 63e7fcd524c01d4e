"""Which way of joining sublayers learns best at one size?  (arXiv:2603.15031, table 4)"""

from attnres.experiment.study import Study
from attnres.residual import RESIDUALS
from attnres.train.recipes import SCALED, small

SAME_AS_ATTN_RES = ("two_phase", "sum", "centered")  # the same model, up to an epsilon
VARIANTS = {  # beside the method at its defaults, which is an arm of its own name
    "attn_res-block": "attn_res:sublayers_per_block=4",
    "scaled_embedding-50": SCALED,
    "rezero-1": "rezero:init=1.0",
    "layer_scale-1": "layer_scale:init=1.0",
    "laurel-rank": "laurel:rank=16",
    "laurel-previous": "laurel:n_previous=3,rank=16",
    "hyper-static": "hyper:dynamic=False",
    "mhc-identity": "mhc:constraint=identity",
    "mhc-permutation": "mhc:constraint=permutation",
    "muddformer-residual": "muddformer:ways=residual",
    "grn-qkv": "grn:ways=qkv",
    "window-remainder": "window:remainder=True",
    "delta-block": "delta:n_blocks=4",
}
PAPER = {  # validation loss, 32 sublayers, 436 M parameters
    "standard": 1.766,
    "denseformer": 1.767,
    "mhc": 1.747,
    "attn_res": 1.737,
    "attn_res-block": 1.746,
    "window": 1.764,
}


def arms() -> dict[str, str]:
    """Every registered method at its defaults, your own among them, and the variants."""
    found = {name: name for name in RESIDUALS if name not in SAME_AS_ATTN_RES}
    return found | {a: text for a, text in VARIANTS.items() if text.partition(":")[0] in found}


def study() -> Study:
    found = arms()
    return Study(
        name="methods",
        base=small(),
        arms=found,
        learning_rates=(1e-2, 2e-2, 4e-2),
        paper={arm: loss for arm, loss in PAPER.items() if arm in found},
        beside="attn_res",
    )
