"""Queries start at zero and gains at one, whatever else initialises the model; borders."""

import pytest
import torch
from torch import nn

from attnres import AttnRes, BlockLayout
from attnres.residual import AttnResConfig, DepthReader

LAYOUT = BlockLayout.of(6, sublayers_per_block=4)


def _assert_at_start(residual: AttnRes) -> None:
    readers = [reader for reader in residual.readers if isinstance(reader, DepthReader)]
    assert len(readers) == 6
    for reader in readers:
        assert torch.equal(reader.query, torch.zeros(8))
        assert torch.equal(reader.key_weight, torch.ones(8))


def _xavier(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)


def _gpt2(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _truncated(module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if isinstance(weight, nn.Parameter):
        nn.init.trunc_normal_(weight, std=0.02)
    for name, parameter in module.named_parameters():
        if name == "weight" or name.endswith(".weight"):
            nn.init.trunc_normal_(parameter, std=0.02)
        if name == "bias" or name.endswith(".bias"):
            nn.init.normal_(parameter)


@pytest.mark.parametrize("initialise", [_xavier, _gpt2, _truncated])
def test_zero_queries_survive_the_usual_initialisers(initialise):
    model = nn.ModuleDict({"residual": AttnRes(8, LAYOUT), "linear": nn.Linear(8, 8)})
    linear = model["linear"]
    assert isinstance(linear, nn.Linear)
    before = linear.weight.clone()
    model.apply(initialise)
    assert not torch.equal(before, linear.weight)
    residual = model["residual"]
    assert isinstance(residual, AttnRes)
    _assert_at_start(residual)


def test_reset_parameters_after_the_meta_device():
    with torch.device("meta"):
        residual = AttnRes(8, LAYOUT)
    assert {p.device.type for p in residual.parameters()} == {"meta"}
    residual.to_empty(device="cpu")
    for parameter in residual.parameters():
        nn.init.constant_(parameter, torch.nan)
    residual.reset_parameters()
    _assert_at_start(residual)


def test_every_module_with_parameters_of_its_own_can_be_reset_alone():
    """FSDP resets module by module."""
    residual = AttnRes(8, LAYOUT)
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    for module in residual.modules():
        if list(module.parameters(recurse=False)):
            assert isinstance(module, DepthReader)
            module.reset_parameters()
    _assert_at_start(residual)


@pytest.mark.parametrize("dim", [0, -8])
def test_width_must_be_positive(dim):
    with pytest.raises(ValueError, match=f"dim must be a positive integer, got {dim}"):
        AttnRes(dim, LAYOUT)


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf")])
def test_epsilon_must_be_finite_and_not_negative(eps):
    with pytest.raises(ValueError, match=f"eps must be finite and not negative, got {eps}"):
        AttnRes(8, LAYOUT, eps=eps)


@pytest.mark.parametrize("depth", [-1, 6, 7])
def test_a_sublayer_that_does_not_exist_neither_reads_nor_writes(depth):
    """A negative index would pick another reader in silence."""
    residual = AttnRes(8, LAYOUT)
    state = residual.start(torch.ones(8))
    with pytest.raises(ValueError, match=f"depth must be from 0 to 5, got {depth}"):
        residual.write(state, depth, torch.ones(8))
    with pytest.raises(ValueError, match=f"depth must be from 0 to 5, got {depth}"):
        residual.read(state, depth)


@pytest.mark.parametrize("depth", [-1, 7])
def test_weights_of_a_reader_that_does_not_exist_are_refused(depth):
    residual = AttnRes(8, LAYOUT)
    with pytest.raises(ValueError, match=f"depth must be from 0 to 6, got {depth}"):
        residual.weights(residual.start(torch.ones(8)), depth)


def test_epsilon_reaches_every_read():
    config = AttnResConfig(n_blocks=2, eps=10.0)
    residual = config.build(8, 4)
    assert config.describe(4) == {"layout": residual.layout.to_json(), "eps": 10.0}
    for parameter in residual.parameters():
        nn.init.ones_(parameter)
    state = residual.start(torch.ones(8))
    sums = [1.0]  # of the sources so far: the embedding, then blocks of two twos
    for depth in range(4):
        state = residual.write(state, depth, torch.ones(8) * 2)
        sums = [*sums, 2.0] if depth % 2 == 0 else [*sums[:-1], 4.0]
        key_S = torch.tensor(sums)
        expected_S = (8 * key_S / (key_S.square() + 10).sqrt()).softmax(0)
        torch.testing.assert_close(residual.weights(state, depth + 1), expected_S)
