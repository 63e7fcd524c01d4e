"""Where is the best shape at one compute?  (arXiv:2603.15031, section 5.4.1 and figure 7)

Weights of all layers are nearly the same at every point; steps make C, with attention, the same.
"""

from dataclasses import replace

from attnres.experiment.study import Study
from attnres.experiment.sweep import Sweep, compute_of
from attnres.train.recipes import SCALED, small

SHAPES = {2: 128, 4: 88, 8: 64, 16: 48, 32: 32}  # layers: width
N_HEADS = (1, 2, 4)  # at every shape
REFERENCE_POINT = (8, 2)  # of which C is that of the recipe `small`


def study() -> Sweep:
    budget = _total(_at(*REFERENCE_POINT, n_steps=small().n_steps))
    studies = {}
    for n_layers in SHAPES:
        for n_heads in N_HEADS:
            a_step = _total(_at(n_layers, n_heads, n_steps=1))
            found = _at(n_layers, n_heads, n_steps=round(budget / a_step))
            studies[f"l{n_layers}h{n_heads}"] = found
    return Sweep(name="depth_width", studies=studies)


def _total(found: Study) -> float:
    return compute_of(found, "standard").total("attention")


def _at(n_layers: int, n_heads: int, n_steps: int) -> Study:
    base, dim = small(), SHAPES[n_layers]
    sizes = {"dim": dim, "n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_heads}
    model = replace(base.model, **sizes, mlp_dim=11 * dim // 4 // 8 * 8)
    return Study(
        name=f"depth_width-l{n_layers}h{n_heads}",
        base=replace(base, model=model, n_steps=n_steps),
        arms={
            "standard": "standard",
            "scaled": SCALED,
            "full": "attn_res",
        },
        beside="scaled",
        learning_rates=(1e-2, 2e-2, 4e-2),
        in_order=True,
        rates_of_reference=True,
    )
