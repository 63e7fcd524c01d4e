"""How much compute does attention over depth save?  (arXiv:2603.15031, table 2 and figure 4)

attnres corpus texts && attnres experiment scaling_law
"""

from dataclasses import replace

from attnres.experiment.study import Study
from attnres.experiment.sweep import Sweep, compute_of
from attnres.train.recipes import SCALED, small

SIZES = {  # width, layers, heads; MLP width is 11/4 of the width
    "w24": (24, 4, 1),
    "w32": (32, 4, 1),
    "w48": (48, 6, 2),
    "w64": (64, 8, 2),
    "w80": (80, 10, 2),
}
RATES = (1e-2, 2e-2, 4e-2)
FURTHER_RATES = {"w24": (8e-2,), "w32": (8e-2,), "w80": (5e-3,)}  # the best of RATES was at an edge
TOKENS_PER_WEIGHT = 5
ARMS = {
    "standard": "standard",
    "scaled": SCALED,
    "block": "attn_res:n_blocks=4",
    "full": "attn_res",
    "mhc": "mhc",
}


def study() -> Sweep:
    return Sweep(name="scaling_law", studies={point: _at(point) for point in SIZES})


def _at(point: str) -> Study:
    dim, n_layers, n_heads = SIZES[point]
    base = small()
    base = replace(
        base,
        data=replace(base.data, path="texts"),
        model=replace(
            base.model,
            dim=dim,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            mlp_dim=11 * dim // 4 // 8 * 8,
        ),
    )
    found = Study(
        name=f"scaling_law-{point}",
        base=base,
        arms=ARMS,
        learning_rates=tuple(sorted((*RATES, *FURTHER_RATES.get(point, ())))),
        in_order=True,
        rates_of_reference=True,
        beside="scaled",
    )
    n_weights = compute_of(found, "standard").weights / (6 * base.n_steps * base.tokens_per_step)
    n_steps = round(TOKENS_PER_WEIGHT * n_weights / base.tokens_per_step)
    warmup = replace(base.optim, warmup_steps=n_steps // 10)
    every = max(n_steps // 4, 1)
    base = replace(base, n_steps=n_steps, optim=warmup, validate_every=every, probe_every=n_steps)
    return replace(found, base=replace(base, save_every=every))
