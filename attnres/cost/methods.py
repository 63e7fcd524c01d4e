"""All residual methods beside each other: counted, and measured on this machine's CPU."""

from dataclasses import dataclass, fields
from typing import Any

import torch

from attnres.cost.counted import Counted, count, eager_work, saved_vectors
from attnres.residual import RESIDUALS, ResidualConfig, format_residual

N_TOKENS, DIM = 64, 256  # of the measurement


@dataclass(frozen=True, kw_only=True)
class Measured:
    """On the CPU in float32, in vectors of D numbers a token."""

    saved: float  # that autograd keeps for the backward, over all sublayers
    moved: float  # a sublayer, forward, op by op in plain PyTorch


@dataclass(frozen=True, kw_only=True)
class MethodCost:
    """A method by its name and settings."""

    method: str
    starts_as: str
    counted: Counted
    measured: Measured


def measure(config: ResidualConfig, n_sublayers: int) -> Measured:
    """Both forward passes are run; sublayers are left out."""
    residual: Any = config.build(DIM, n_sublayers)
    embed_TD = torch.randn(N_TOKENS, DIM, requires_grad=True)
    saved = saved_vectors(residual, embed_TD)
    moved = eager_work(residual, embed_TD).n_numbers / embed_TD.numel() / n_sublayers
    return Measured(saved=saved, moved=moved)


def variants(n_sublayers: int, n_blocks: int = 8) -> list[ResidualConfig]:
    """Every method with its default settings and, where it can have blocks, in blocks."""
    found: list[ResidualConfig] = []
    for kind in RESIDUALS.values():
        found.append(kind())
        if "n_blocks" in {field.name for field in fields(kind)} and n_blocks < n_sublayers:
            found.append(kind(n_blocks=n_blocks))
    return found


def method_costs(dim: int, n_sublayers: int, n_blocks: int = 8) -> list[MethodCost]:
    """Counts are of width `dim`; what is measured hardly depends on it."""
    with torch.random.fork_rng(devices=[]):
        return [_cost(each, dim, n_sublayers) for each in variants(n_sublayers, n_blocks)]


def _cost(config: ResidualConfig, dim: int, n_sublayers: int) -> MethodCost:
    with torch.device("meta"):
        starts_as = config.build(dim, n_sublayers).starts_as
    return MethodCost(
        method=format_residual(config),
        starts_as=starts_as,
        counted=count(config, dim, n_sublayers),
        measured=measure(config, n_sublayers),
    )
