"""Residual methods for tests: configs by what they claim, and a run of one method alone."""

from typing import Any

import torch
from torch import Tensor, nn

from attnres.residual import (
    AttnResConfig,
    CenteredConfig,
    Residual,
    ResidualConfig,
    StandardConfig,
    SummedConfig,
    TwoPhaseConfig,
)

CONFIGS: list[ResidualConfig] = [
    StandardConfig(),
    AttnResConfig(),
    AttnResConfig(sublayers_per_block=2),
    AttnResConfig(sublayers_per_block=5),  # closes inside a layer; the last block is short
    AttnResConfig(query="input", null_source=True),
    AttnResConfig(weights="scalars", kernel="sigmoid"),
    AttnResConfig(sublayers_per_block=5, key_rank=4, count_prior=0.5),
    TwoPhaseConfig(),
    TwoPhaseConfig(sublayers_per_block=2),
    TwoPhaseConfig(sublayers_per_block=5),
    TwoPhaseConfig(sublayers_per_block=2, readers_per_group=3),  # groups cut blocks
    SummedConfig(),
    SummedConfig(sublayers_per_block=5),
    CenteredConfig(),
    CenteredConfig(sublayers_per_block=5),
]
MIXES_CHANNELS: tuple[type[Any], ...] = ()  # kinds of config without a depth mixing matrix


def random_residual(config: ResidualConfig, dim: int, n_sublayers: int) -> Residual[Any]:
    """The method with every parameter drawn, so that no weight is that of the start."""
    torch.manual_seed(0)
    residual = config.build(dim, n_sublayers)
    for parameter in residual.parameters():
        nn.init.normal_(parameter, std=0.5)
    return residual


def run_alone(residual: Residual[Any], embed_BTD: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every reader read, and the outputs, the embedding first, over random branches."""
    torch.manual_seed(1)
    dim = embed_BTD.shape[-1]
    state, outputs, reads = residual.start(embed_BTD), [embed_BTD], []
    for depth in range(residual.n_sublayers):
        h_BTD, state = residual.read(state, depth)
        reads.append(h_BTD)
        outputs.append(torch.tanh(h_BTD @ torch.randn(dim, dim, dtype=h_BTD.dtype)))
        state = residual.write(state, depth, outputs[-1])
    with torch.no_grad():
        return [*reads, residual.finish(state)], outputs
