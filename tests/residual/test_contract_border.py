"""What every residual method refuses, and that its gradients are those of its function."""

import pytest
import torch
from depth_methods import one_input
from torch import nn

from attnres import AttnRes, BlockLayout, Standard
from attnres.residual import (
    RESIDUALS,
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
    MuddFormerConfig,
    ReZeroConfig,
    ScaledEmbeddingConfig,
    StandardConfig,
    SummedConfig,
    TwoPhaseConfig,
    WindowConfig,
)
from attnres.residual.base import Parts

N_SUBLAYERS, DIM = 4, 3
PLAIN_SUMS = {  # a stream or partial sum is the sum of outputs, and nothing else
    "standard": StandardConfig(),
    "full": AttnResConfig(),
    "block": AttnResConfig(sublayers_per_block=3),
    "projected query": AttnResConfig(query="input", null_source=True),
    "learned weights": AttnResConfig(weights="scalars", kernel="sigmoid"),
    "counted sources": AttnResConfig(sublayers_per_block=3, key_rank=2, count_prior=0.5),
    "two phases, full": TwoPhaseConfig(),
    "two phases, block": TwoPhaseConfig(sublayers_per_block=3),
    "sum": SummedConfig(sublayers_per_block=3),
    "centered, full": CenteredConfig(),
    "centered, block": CenteredConfig(sublayers_per_block=3),
    "window": WindowConfig(n_last=1),
    "window, remainder": WindowConfig(n_last=1, remainder=True),
    "delta, block": DeltaConfig(sublayers_per_block=3),
    "denseformer": DenseFormerConfig(sublayers_per_layer=1),
    "muddformer": MuddFormerConfig(),
    "grn": GrnConfig(ways="qkv", n_last=1),
}
CONFIGS = {
    **PLAIN_SUMS,
    "scaled embedding": ScaledEmbeddingConfig(scale=-3.0),
    "highway": HighwayConfig(),
    "highway, dense": HighwayConfig(gate="dense"),
    "rezero": ReZeroConfig(),
    "layer scale": LayerScaleConfig(),
    "deep norm": DeepNormConfig(),
    "keel": KeelConfig(),
    "laurel": LaurelConfig(n_previous=2),
    "laurel, low rank": LaurelConfig(rank=2, n_previous=1),
    "hyper": HyperConnectionsConfig(n_streams=2),
    "hyper, static": HyperConnectionsConfig(n_streams=2, dynamic=False),
    "mhc": ManifoldHyperConnectionsConfig(n_streams=2),
    "mhc, permutation": ManifoldHyperConnectionsConfig(n_streams=3, constraint="permutation"),
    "mhc, identity": ManifoldHyperConnectionsConfig(n_streams=2, constraint="identity"),
    "delta rule": DeltaRuleConfig(),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def test_every_method_is_here():
    assert {type(config) for config in CONFIGS.values()} == set(RESIDUALS.values())


@every_config
def test_gradients_of_input_and_parameters_in_float64(config):
    torch.manual_seed(0)
    residual = config.build(DIM, N_SUBLAYERS).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)

    def run(embed_TD, scale, *parameters):
        state = residual.start(embed_TD)
        for depth in range(N_SUBLAYERS):
            mix, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(one_input(mix) * scale))
        return residual.finish(state)

    embed_TD = torch.randn(2, DIM, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(DIM, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (embed_TD, scale, *residual.parameters()))


@every_config
def test_tokens_are_joined_alone_whatever_their_shape(config):
    """One token has no leading axis; no tokens are a tensor without numbers."""
    torch.manual_seed(0)
    residual = config.build(DIM, N_SUBLAYERS).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)

    def run(embed_D):
        state = residual.start(embed_D)
        for depth in range(N_SUBLAYERS):
            mix, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(one_input(mix)))
        return residual.finish(state)

    embed_BTD = torch.randn(2, 3, DIM, dtype=torch.float64)
    expected = run(embed_BTD)
    torch.testing.assert_close(run(embed_BTD[1, 2]), expected[1, 2])
    torch.testing.assert_close(run(embed_BTD[:, 1]), expected[:, 1])
    assert run(embed_BTD[:, :0]).shape == (2, 0, DIM)


@every_config
def test_a_bfloat16_stream_stays_so_under_float32_branches(config):
    residual = config.build(DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, DIM).bfloat16())
    for depth in range(N_SUBLAYERS):
        mix, state = residual.read(state, depth)
        assert one_input(mix).dtype == torch.bfloat16
        state = residual.write(state, depth, torch.randn(2, DIM))
    assert residual.finish(state).dtype == torch.bfloat16


@every_config
@pytest.mark.parametrize("depth", [-1, N_SUBLAYERS])
def test_a_depth_that_does_not_exist_is_refused(config, depth):
    residual = config.build(DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, DIM))
    with pytest.raises(ValueError, match=f"from 0 to 3, got {depth}"):
        residual.read(state, depth)
    with pytest.raises(ValueError, match=f"from 0 to 3, got {depth}"):
        residual.write(state, depth, torch.randn(2, DIM))


@every_config
@pytest.mark.parametrize("shape", [(DIM,), (1, DIM), (4, 2, DIM), (2, 1)])
def test_an_output_of_another_shape_is_refused(config, shape):
    residual = config.build(DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, DIM))
    with pytest.raises(ValueError, match=r"sublayer 0 has shape .*the embedding \[2, 3\]"):
        residual.write(state, 0, torch.randn(shape))


@every_config
def test_an_output_that_is_no_tensor_is_refused(config):
    attention = nn.MultiheadAttention(DIM, 1)
    residual = config.build(DIM, N_SUBLAYERS)
    embed_TD = torch.randn(2, DIM)
    with pytest.raises(ValueError, match="output of sublayer 0 must be a tensor, got a tuple"):
        residual.write(residual.start(embed_TD), 0, attention(embed_TD, embed_TD, embed_TD))


@every_config
def test_parts_of_an_output_are_their_sum(config):
    torch.manual_seed(0)
    residual = config.build(DIM, N_SUBLAYERS).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    whole = in_parts = residual.start(torch.randn(2, DIM, dtype=torch.float64))
    for depth in range(N_SUBLAYERS):
        parts = Parts(*torch.randn(2, 2, DIM, dtype=torch.float64))
        whole = residual.write(whole, depth, parts.first_BTD + parts.second_BTD)
        in_parts = residual.write(in_parts, depth, parts)
    torch.testing.assert_close(residual.finish(in_parts), residual.finish(whole))


@pytest.mark.parametrize("config", PLAIN_SUMS.values(), ids=PLAIN_SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_an_output_are_added_in_turn(config, dtype):
    torch.manual_seed(0)
    residual = config.build(DIM, N_SUBLAYERS)
    embed_TD = torch.randn(2, DIM).to(dtype)
    state = residual.start(embed_TD)
    for depth in range(2):
        before_TD = residual.stream(state)
        parts = Parts(torch.randn(2, DIM), torch.randn(2, DIM))
        state = residual.write(state, depth, parts)
        first_TD, second_TD = (part_TD.to(dtype) for part_TD in parts)
        goes_on_TD, begins_TD = before_TD + first_TD + second_TD, first_TD + second_TD
        assert any(torch.equal(residual.stream(state), x) for x in (goes_on_TD, begins_TD))


@every_config
def test_a_part_of_another_shape_is_refused(config):
    residual = config.build(DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, DIM))
    with pytest.raises(ValueError, match=r"sublayer 0 has shape \[3\], the embedding \[2, 3\]"):
        residual.write(state, 0, Parts(torch.randn(2, DIM), torch.randn(DIM)))


def test_a_state_out_of_step_is_refused():
    residual = AttnRes(DIM, BlockLayout.full(N_SUBLAYERS))
    state = residual.start(torch.randn(2, DIM))
    with pytest.raises(ValueError, match="1 sources, at depth 2 there are 3"):
        residual.read(state, 2)
    with pytest.raises(ValueError, match="1 sources, at depth 2 there are 3"):
        residual.write(state, 2, torch.randn(2, DIM))
    with pytest.raises(ValueError, match="1 sources, at depth 4 there are 5"):
        residual.finish(state)


@pytest.mark.parametrize("n_sublayers", [0, -3, "a", True, 1.5])
def test_standard_needs_a_count(n_sublayers):
    with pytest.raises(ValueError, match="n_sublayers must be a positive integer"):
        Standard(n_sublayers)


@pytest.mark.parametrize(("dim", "layout"), [(16, 8), (8.0, BlockLayout.full(2)), ("x", None)])
def test_attn_res_needs_a_width_and_a_layout(dim, layout):
    with pytest.raises(ValueError, match=r"(dim|layout) must be"):
        AttnRes(dim, layout)


def test_a_named_implementation_is_the_one_that_runs():
    residual = AttnRes(DIM, BlockLayout.full(N_SUBLAYERS), impl="no_such_kernel")
    state = residual.write(residual.start(torch.randn(2, DIM)), 0, torch.randn(2, DIM))
    with pytest.raises(ValueError, match="no implementation 'no_such_kernel'"):
        residual.read(state, 1)
