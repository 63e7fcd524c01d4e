"""Recipes of the Kimi Linear family, from a laptop's to the 48 B of arXiv:2603.15031.

A mixture of experts of which each token takes 8 and one more that all share; three layers of delta
attention, then one of latent attention without positions; Muon.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attnres.residual import AttnResConfig, ResidualConfig, StandardConfig
from attnres.train.data import DataConfig
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe

VOCAB_SIZE = 163840
# decoder layers = heads, width, expert width, rate, sequences a step, 10^9 tokens (table 2)
SCALING = {
    "194m": (12, 896, 400, 2.99e-3, 192, 38.7),
    "241m": (13, 960, 432, 2.80e-3, 256, 45.4),
    "296m": (14, 1024, 464, 2.50e-3, 320, 62.1),
    "436m": (16, 1168, 528, 2.20e-3, 384, 87.9),
    "528m": (17, 1264, 560, 2.02e-3, 432, 119.0),
}
SCALING_SEQ_LEN = 8192
SUBLAYERS_PER_BLOCK = 4  # of the paper's ablations at 436 M; not said for the other sizes


def kimi_model(
    *,
    dim: int,
    n_layers: int,
    n_heads: int,
    mlp_dim: int,
    expert_dim: int,
    n_experts: int,
    n_active_experts: int,
    head_dim: int,
    latent_dim: int,
    residual: ResidualConfig,
    n_dense_layers: int = 1,
    n_shared_experts: int = 1,
) -> ModelConfig:
    """A model of the family; in latent attention keys have half of `head_dim` more, shared."""
    others: dict[str, int | float] = {
        "linear_head_dim": head_dim,
        "qk_nope_head_dim": head_dim,
        "qk_rope_head_dim": head_dim // 2,
        "v_head_dim": head_dim,
        "kv_lora_rank": latent_dim,
        "moe_intermediate_size": expert_dim,
        "num_experts": n_experts,
        "num_experts_per_token": n_active_experts,
        "num_shared_experts": n_shared_experts,
        "first_k_dense_replace": n_dense_layers,
    }
    return ModelConfig(
        family="kimi_linear",
        dim=dim,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        mlp_dim=mlp_dim,
        tie_embeddings=False,
        residual=residual,
        others=others,
    )


def kimi_linear_48b() -> Recipe:
    """The main run: 48 B parameters, 3 B for a token, 10^12 tokens; the rate is Kimi Linear's."""
    model = kimi_model(
        dim=2304, n_layers=27, n_heads=32, mlp_dim=9216, expert_dim=1024, n_experts=256,
        n_active_experts=8, head_dim=128, latent_dim=512,
        residual=AttnResConfig(sublayers_per_block=6),
    )  # fmt: skip
    return Recipe(
        name="kimi_linear_48b",
        model=model,
        data=DataConfig(vocab_size=VOCAB_SIZE),
        optim=OptimConfig(optimizer="muon", lr=1.1e-3, schedule="wsd", warmup_steps=500),
        n_steps=119_209,
        batch_size=8,
        n_accumulations=256,
        seq_len=4096,
        precision="bfloat16",
        checkpoint_gradients=True,
    )


def scaling(size: str) -> Recipe:
    """One of the paper's five sizes, with its residual in blocks.

    Layers, widths, rate, batch and tokens are the paper's. It says neither how many experts there
    are nor how wide a head is: 512 (8 and one more for a token) and 128, with no dense layer, give
    its five counts of active parameters to their rounding.
    """
    n_layers, dim, expert_dim, lr, n_sequences, billions = SCALING[size]
    model = kimi_model(
        dim=dim, n_layers=n_layers, n_heads=n_layers, mlp_dim=4 * dim, expert_dim=expert_dim,
        n_experts=512, n_active_experts=8, head_dim=128, latent_dim=512, n_dense_layers=0,
        residual=AttnResConfig(sublayers_per_block=SUBLAYERS_PER_BLOCK),
    )  # fmt: skip
    return Recipe(
        name=f"kimi_{size}",
        model=model,
        data=DataConfig(vocab_size=VOCAB_SIZE),
        optim=OptimConfig(optimizer="muon", lr=lr, warmup_steps=500),
        n_steps=round(billions * 1e9 / (n_sequences * SCALING_SEQ_LEN)),
        batch_size=8,
        n_accumulations=n_sequences // 8,
        seq_len=SCALING_SEQ_LEN,
        precision="bfloat16",
        checkpoint_gradients=True,
    )


def kimi_laptop() -> Recipe:
    """Two million parameters: some minutes on one core."""
    model = kimi_model(
        dim=64, n_layers=8, n_heads=2, mlp_dim=176, expert_dim=32, n_experts=32,
        n_active_experts=4, head_dim=32, latent_dim=32, residual=StandardConfig(),
    )  # fmt: skip
    return Recipe(
        name="standard",
        model=model,
        data=DataConfig(vocab_size=1024),
        optim=OptimConfig(
            optimizer="muon",
            lr=8e-3,
            warmup_steps=50,
            min_lr_fraction=0.0,
            depth_lr_scale=0.3,  # as in the recipe `small`
        ),
        n_steps=500,
        batch_size=8,
        seq_len=128,
        device="cpu",
        n_validation_sequences=64,
        validate_every=125,
        probe_every=500,
        save_every=125,
        keep_checkpoints=1,
    )


def kimi_laptop_20m() -> Recipe:
    """Twenty million parameters: an hour or so on two cores."""
    base = kimi_laptop()
    model = kimi_model(
        dim=192, n_layers=12, n_heads=4, mlp_dim=512, expert_dim=96, n_experts=24,
        n_active_experts=4, head_dim=48, latent_dim=96, residual=StandardConfig(),
    )  # fmt: skip
    return replace(base, model=model, data=DataConfig(vocab_size=4096), seq_len=256, n_steps=1000)


KIMI: dict[str, Callable[[], Recipe]] = {
    "kimi_laptop": kimi_laptop,
    "kimi_laptop_20m": kimi_laptop_20m,
    **{f"kimi_{size}": partial(scaling, size) for size in SCALING},
    "kimi_linear_48b": kimi_linear_48b,
}
