"""Does attention over depth help most where an answer takes several steps?

pip install 'attention-residuals[eval]' && attnres experiment reasoning
"""

from dataclasses import replace

from attnres.experiment.study import Study
from attnres.train.data import DataConfig
from attnres.train.recipes import SCALED, small

N_STEPS = 2000  # of 2,048 tokens


def study() -> Study:
    base = small()
    return Study(
        name="reasoning",
        base=replace(
            base,
            data=DataConfig(path="reasoning:", vocab_size=1024),
            optim=replace(base.optim, warmup_steps=N_STEPS // 10),
            n_steps=N_STEPS,
            seq_len=256,
            validate_every=N_STEPS // 4,
            probe_every=N_STEPS,
            save_every=N_STEPS // 4,
        ),
        arms={
            "standard": "standard",
            "scaled": SCALED,
            "block": "attn_res:n_blocks=4",
            "full": "attn_res",
            "mhc": "mhc",
        },
        learning_rates=(2e-3, 4e-3, 8e-3, 1.6e-2),
        in_order=True,
        beside="scaled",
    )
