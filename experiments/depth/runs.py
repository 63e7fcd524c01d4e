"""Does the baseline saturate with depth, and attention over depth not?  One width, one text."""

from dataclasses import replace

from attnres.experiment.study import Study
from attnres.experiment.sweep import Sweep
from attnres.train.recipes import SCALED, small

N_LAYERS = (6, 12, 24, 48)  # 12 to 96 sublayers


def study() -> Sweep:
    return Sweep(name="depth", studies={f"L{2 * n}": _at(n) for n in N_LAYERS})


def _at(n_layers: int) -> Study:
    base = small()
    return Study(
        name=f"depth-L{2 * n_layers}",
        base=replace(base, model=replace(base.model, n_layers=n_layers)),
        arms={
            "standard": "standard",
            "scaled": SCALED,
            "block": "attn_res:n_blocks=8",
            "full": "attn_res",
        },
        beside="scaled",
        learning_rates=(5e-3, 1e-2, 2e-2, 4e-2),
        in_order=True,
        rates_of_reference=True,
    )
