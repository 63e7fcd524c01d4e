"""Does attention over depth help a mixture of experts with delta attention?  (arXiv:2603.15031)"""

from attnres.experiment.study import Study
from attnres.train.kimi import kimi_laptop


def study() -> Study:
    return Study(
        name="kimi_linear",
        base=kimi_laptop(),
        arms={"standard": "standard", "block": "attn_res:sublayers_per_block=4"},
        learning_rates=(4e-3, 8e-3, 1.6e-2),
        in_order=True,
        paper={"standard": 1.766, "block": 1.746},  # 436 M active parameters, table 2
    )
