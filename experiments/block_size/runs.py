"""How large may a block be?  (arXiv:2603.15031, figure 6)"""

from attnres.experiment.study import Study
from attnres.train.recipes import small

SIZES = (2, 4, 8, 16)  # sublayers; 1 is Full, 16 are all
PAPER = {  # validation loss of 32 sublayers, 436 M parameters; its one block has 32 sublayers
    "standard": 1.766,
    "1": 1.737,
    "2": 1.746,
    "4": 1.746,
    "8": 1.748,
    "16": 1.753,
}


def study() -> Study:
    arms = {"standard": "standard", "1": "attn_res"}
    arms |= {str(size): f"attn_res:sublayers_per_block={size}" for size in SIZES}
    return Study(
        name="block_size",
        base=small(),
        arms=arms,
        learning_rates=(1e-2, 2e-2, 4e-2),
        in_order=True,
        paper=PAPER,
        beside="1",
    )
