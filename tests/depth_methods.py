"""Residual methods for tests: configs by what they claim, and a run of one method alone."""

from typing import Any

import torch
from torch import Tensor, nn

from attnres.residual import (
    AttnResConfig,
    CenteredConfig,
    DeepNormConfig,
    DeltaConfig,
    DeltaRuleConfig,
    DenseFormerConfig,
    GrnConfig,
    HighwayConfig,
    HyperConnectionsConfig,
    KeelConfig,
    LaurelConfig,
    LayerScaleConfig,
    ManifoldHyperConnectionsConfig,
    Mix,
    MuddFormerConfig,
    Residual,
    ResidualConfig,
    ReZeroConfig,
    ScaledEmbeddingConfig,
    StandardConfig,
    SummedConfig,
    TwoPhaseConfig,
    Ways,
    WindowConfig,
)

CONFIGS: list[ResidualConfig] = [
    StandardConfig(),
    AttnResConfig(),
    AttnResConfig(sublayers_per_block=2),
    AttnResConfig(sublayers_per_block=5),  # closes inside a layer; the last block is short
    AttnResConfig(query="input", null_source=True),
    AttnResConfig(weights="scalars", kernel="sigmoid"),
    AttnResConfig(sublayers_per_block=5, key_rank=4, count_prior=0.5),
    AttnResConfig(routes="qk_v"),
    AttnResConfig(n_heads=2),
    TwoPhaseConfig(),
    TwoPhaseConfig(sublayers_per_block=2),
    TwoPhaseConfig(sublayers_per_block=5),
    TwoPhaseConfig(sublayers_per_block=2, readers_per_group=3),  # groups cut blocks
    SummedConfig(),
    SummedConfig(sublayers_per_block=5),
    CenteredConfig(),
    CenteredConfig(sublayers_per_block=5),
    WindowConfig(n_last=2),
    WindowConfig(n_last=2, remainder=True),
    DeltaConfig(),
    DeltaConfig(sublayers_per_block=5),
    DenseFormerConfig(),
    DenseFormerConfig(dilation=2, period=2, sublayers_per_layer=1),
    MuddFormerConfig(),
    MuddFormerConfig(ways="residual"),
    GrnConfig(version=1, sublayers_per_layer=1, n_last=2),
    GrnConfig(version=2),
    GrnConfig(ways="qkv", n_last=1),
    ScaledEmbeddingConfig(),
    HighwayConfig(),
    HighwayConfig(gate="dense"),
    ReZeroConfig(),
    LayerScaleConfig(),
    DeepNormConfig(),
    KeelConfig(),
    LaurelConfig(n_previous=2),
    LaurelConfig(weights=False, rank=3, n_previous=1),
    HyperConnectionsConfig(n_streams=2),
    HyperConnectionsConfig(n_streams=3, dynamic=False),
    ManifoldHyperConnectionsConfig(n_streams=3, constraint="permutation", reading="even"),
    ManifoldHyperConnectionsConfig(n_streams=3),
    ManifoldHyperConnectionsConfig(n_streams=2, constraint="identity"),
    DeltaRuleConfig(),
]
# the first of each: inductor takes half a minute to minutes
ONE_OF_A_KIND = list({type(config): config for config in reversed(CONFIGS)}.values())
MIXES_CHANNELS: list[ResidualConfig] = [  # without a depth mixing matrix
    HighwayConfig(gate="dense"),
    LaurelConfig(weights=False, rank=3, n_previous=1),
    DeltaRuleConfig(),
]
WEIGHS_CHANNELS: list[ResidualConfig] = [  # whose matrix is a mean over channels
    LayerScaleConfig(),
    DeepNormConfig(),
    KeelConfig(),
    AttnResConfig(n_heads=2),
    GrnConfig(version=2),
    GrnConfig(ways="qkv", n_last=1),
]


def random_residual(config: ResidualConfig, dim: int, n_sublayers: int) -> Residual[Any]:
    """The method with every parameter drawn, so that no weight is that of the start."""
    torch.manual_seed(0)
    residual = config.build(dim, n_sublayers)
    for parameter in residual.parameters():
        nn.init.normal_(parameter, std=0.5)
    return residual


def one_input(mix: Mix) -> Tensor:
    """What a stub of a sublayer takes; several ways get into it unequally, and none is lost."""
    if not isinstance(mix, Ways):
        return mix
    return mix.value_BTD + torch.tanh(mix.query_BTD) * torch.sin(mix.key_BTD)


def run_alone(residual: Residual[Any], embed_BTD: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every reader read, and the outputs, the embedding first, over random branches."""
    torch.manual_seed(1)
    dim = embed_BTD.shape[-1]
    state, outputs, reads = residual.start(embed_BTD), [embed_BTD], []
    for depth in range(residual.n_sublayers):
        mix, state = residual.read(state, depth)
        h_BTD = one_input(mix)
        reads.append(mix.value_BTD if isinstance(mix, Ways) else mix)
        outputs.append(torch.tanh(h_BTD @ torch.randn(dim, dim, dtype=h_BTD.dtype)))
        state = residual.write(state, depth, outputs[-1])
    with torch.no_grad():
        return [*reads, residual.finish(state)], outputs
