"""What changes over depth while a model learns?  (arXiv:2603.15031, figures 5 and 8)"""

from dataclasses import replace

from attnres.experiment.study import Study
from attnres.train.recipes import small


def study() -> Study:
    base = small()
    optim = replace(base.optim, schedule="wsd")
    return Study(
        name="dynamics",
        base=replace(base, n_steps=2000, optim=optim, validate_every=100, probe_every=100),
        arms={"standard": "standard", "block": "attn_res:n_blocks=8", "full": "attn_res"},
        learning_rates=(1e-2, 2e-2, 4e-2),
        in_order=True,
        rates_of_reference=True,
    )
