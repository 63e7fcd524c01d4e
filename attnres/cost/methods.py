"""All residual methods beside each other: counted, and measured on this machine's CPU."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from attnres.cost.counted import Counted, count, eager_work, saved_vectors
from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.residual import RESIDUALS, ResidualConfig, parse_residual

N_TOKENS, DIM = 64, 256  # of the measurement; a narrower method is measured at its own width


@dataclass(frozen=True, kw_only=True)
class Measured:
    """On the CPU in float32, in vectors of D numbers a token."""

    saved: float  # that autograd keeps for the backward, over all sublayers
    moved: float  # a sublayer, forward, op by op in plain PyTorch


@dataclass(frozen=True, kw_only=True)
class MethodCost:
    """A method by its name and the settings that are not its defaults."""

    method: str
    starts_as: str
    counted: Counted
    measured: Measured


def measure(config: ResidualConfig, n_sublayers: int, dim: int = DIM) -> Measured:
    """Both forward passes are run; sublayers are left out."""
    residual: Any = config.build(dim, n_sublayers)
    embed_TD = torch.randn(N_TOKENS, dim, requires_grad=True)
    saved = saved_vectors(residual, embed_TD)
    moved = eager_work(residual, embed_TD).n_numbers / embed_TD.numel() / n_sublayers
    return Measured(saved=saved, moved=moved)


def variants(
    n_sublayers: int, n_blocks: int = 8, sublayers_per_layer: int = SUBLAYERS_PER_LAYER
) -> dict[str, ResidualConfig]:
    """Every method with its default settings and, where it can have blocks, in blocks.

    By the text that `parse_residual` reads. Methods that average after a layer get its sublayers.
    """
    found: dict[str, ResidualConfig] = {}
    for name, kind in RESIDUALS.items():
        settings = {field.name for field in fields(kind)}
        if "sublayers_per_layer" in settings and sublayers_per_layer != SUBLAYERS_PER_LAYER:
            name = f"{name}:sublayers_per_layer={sublayers_per_layer}"
        found[name] = parse_residual(name)
        if "n_blocks" in settings and n_blocks < n_sublayers:
            found[f"{name}:n_blocks={n_blocks}"] = kind(n_blocks=n_blocks)
    return found


def method_costs(
    dim: int,
    n_sublayers: int,
    n_blocks: int = 8,
    sublayers_per_layer: int = SUBLAYERS_PER_LAYER,
) -> list[MethodCost]:
    """Counted at width `dim`, measured at `min(dim, DIM)`: scalars a token weigh more there."""
    configs = variants(n_sublayers, n_blocks, sublayers_per_layer)
    with torch.random.fork_rng(devices=[]):
        return [_cost(name, config, dim, n_sublayers) for name, config in configs.items()]


def _cost(name: str, config: ResidualConfig, dim: int, n_sublayers: int) -> MethodCost:
    with torch.device("meta"):
        starts_as = config.build(dim, n_sublayers).starts_as
    return MethodCost(
        method=name,
        starts_as=starts_as,
        counted=count(config, dim, n_sublayers),
        measured=measure(config, n_sublayers, min(dim, DIM)),
    )
