"""Recipes: functions that return a `Recipe`, by name on the command line.

A recipe of your own is a function anywhere on the Python path:
`attnres train my_package.my_module:my_recipe`.
"""

from collections.abc import Callable
from dataclasses import replace

from attnres.residual import AttnResConfig, StandardConfig
from attnres.train.data import DataConfig
from attnres.train.kimi import KIMI
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe

SCALED = "scaled_embedding:scale=50.0"  # 1 / `init_std`: an embedding of root mean square 1


def demo() -> Recipe:
    """A Llama of 12 layers that trains on two CPU cores in minutes."""
    return Recipe(
        name="standard",
        model=ModelConfig(dim=128, n_layers=12, n_heads=4, n_kv_heads=4, mlp_dim=352),
        optim=OptimConfig(optimizer="muon", lr=1e-2, warmup_steps=20),
        n_steps=250,
        batch_size=8,
        seq_len=256,
    )


def demo_comparison(n_steps: int = 0) -> tuple[Recipe, ...]:
    """The same model under three residuals; 0 steps is the demo's own number."""
    base = demo()
    base = replace(base, n_steps=n_steps or base.n_steps)
    residuals = {
        "standard": StandardConfig(),
        "block": AttnResConfig(n_blocks=6),
        "full": AttnResConfig(),
    }
    return tuple(
        replace(base, name=name, model=replace(base.model, residual=residual))
        for name, residual in residuals.items()
    )


def small() -> Recipe:
    """A Llama of 8 layers that sees half a million tokens: a minute or two on one core."""
    return Recipe(
        name="standard",
        model=ModelConfig(dim=64, n_layers=8, n_heads=2, n_kv_heads=2, mlp_dim=176),
        data=DataConfig(vocab_size=1024),
        optim=OptimConfig(
            optimizer="muon",
            lr=2e-2,
            warmup_steps=50,
            min_lr_fraction=0.0,
            depth_lr_scale=0.3,  # experiments/LOG.md, "the rate of the queries"
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


RECIPES: dict[str, Callable[[], Recipe]] = {"demo": demo, "small": small, **KIMI}
