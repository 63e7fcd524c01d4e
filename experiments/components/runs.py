"""Which parts of Attention Residuals matter?  (arXiv:2603.15031, table 4)"""

from attnres.experiment.study import Study
from attnres.train.recipes import small

ARMS = {
    "standard": "standard",
    "full": "attn_res",
    "full-input-query": "attn_res:query=input",
    "full-scalars": "attn_res:weights=scalars",
    "full-sigmoid": "attn_res:kernel=sigmoid",
    "full-no-key-norm": "attn_res:key_norm=False",
    "full-heads-2": "attn_res:n_heads=2",
    "full-heads-8": "attn_res:n_heads=8",
    "full-key-rank": "attn_res:key_rank=16",
    "full-random-query": "attn_res:query_std=0.02",
    "full-null-source": "attn_res:null_source=True",
    "full-routes": "attn_res:routes=qk_v",
    "block": "attn_res:sublayers_per_block=4",
    "block-no-key-norm": "attn_res:sublayers_per_block=4,key_norm=False",
    "block-heads-8": "attn_res:sublayers_per_block=4,n_heads=8",
    "block-count-prior": "attn_res:sublayers_per_block=4,count_prior=1.0",
}
PAPER = {  # validation loss, 32 sublayers, 436 M parameters
    "standard": 1.766,
    "full": 1.737,
    "full-input-query": 1.731,
    "full-scalars": 1.749,
    "full-sigmoid": 1.741,
    "full-no-key-norm": 1.743,
    "block": 1.746,
    "block-no-key-norm": 1.750,
    "block-heads-8": 1.752,  # 16 heads there
}


def study() -> Study:
    return Study(
        name="components",
        base=small(),
        arms=ARMS,
        learning_rates=(1e-2, 2e-2, 4e-2),
        in_order=True,
        paper=PAPER,
        beside="full",
    )
