"""GRN by hand: three versions, one way or three, and the sum of what fell out."""

from typing import Any

import pytest
import torch
from depth_methods import one_input, random_residual
from torch import Tensor

from attnres.residual import Grn, GrnConfig, Ways

DIM, N_SUBLAYERS = 3, 8


def mix_by_hand(gates: Any, way: int, sources: list[Tensor]) -> Tensor:
    total_D = torch.zeros(DIM, dtype=torch.float64)
    for j, source_D in enumerate(sources):
        weight = gates.static[way, j].clone()
        if gates.query is not None:
            weight = weight + max(0.0, (gates.query[way] @ source_D).item())
        total_D = total_D + weight * source_D
    return total_D


def sources_of(layers: list[Tensor], n_last: int | None) -> list[Tensor]:
    embed_D, *outputs = layers
    if n_last is None or len(outputs) <= n_last:
        return layers
    rest_D = sum(outputs[:-n_last], torch.zeros(DIM, dtype=torch.float64))
    return [embed_D, rest_D, *outputs[-n_last:]]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("ways", ["one", "qkv"])
@pytest.mark.parametrize("n_last", [None, 1, 2])
def test_reads_are_those_done_by_hand(version, ways, n_last):
    config = GrnConfig(version=version, ways=ways, n_last=n_last)
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    assert isinstance(residual, Grn)
    outputs = torch.randn(N_SUBLAYERS + 1, DIM, dtype=torch.float64)
    state, layers = residual.start(outputs[0]), [outputs[0]]
    for layer in range(N_SUBLAYERS // 2):
        found, state = residual.read(state, 2 * layer)
        expected: Any = outputs[0]
        if layer:
            sources, n_ways = sources_of(layers, n_last), 1 if ways == "one" else 3
            mixes = [mix_by_hand(residual.gates[layer - 1], c, sources) for c in range(n_ways)]
            expected = Ways(*mixes) if ways == "qkv" else mixes[0]
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
        assert isinstance(found, Ways) == residual.has_ways(2 * layer)
        attention_D, mlp_D = outputs[2 * layer + 1], outputs[2 * layer + 2]
        state = residual.write(state, 2 * layer, attention_D)
        read_on_D = expected.query_BTD if isinstance(expected, Ways) else expected
        found, state = residual.read(state, 2 * layer + 1)
        torch.testing.assert_close(found, read_on_D + attention_D, atol=1e-12, rtol=1e-12)
        state = residual.write(state, 2 * layer + 1, mlp_D)
        layers.append(attention_D + mlp_D)
    sources = sources_of(layers, n_last)
    expected = mix_by_hand(residual.gates[-1], 0, sources)
    torch.testing.assert_close(residual.finish(state), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_parameter_has_a_gradient_at_the_start(version):
    """Where relu's is taken as zero at zero, w would never move."""
    torch.manual_seed(0)
    residual = GrnConfig(version=version, ways="qkv", n_last=1).build(DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, DIM))
    for depth in range(N_SUBLAYERS):
        mix, state = residual.read(state, depth)
        state = residual.write(state, depth, torch.sin(one_input(mix)))
    residual.finish(state).square().sum().backward()
    for name, parameter in residual.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(("version", "n_per_source", "n_more"), [(1, 1, 0), (2, 4, 0), (3, 4, 4)])
def test_parameters_are_those_of_the_paper(version, n_per_source, n_more):
    """d t + d a read of t sources in version 3."""
    residual = GrnConfig(version=version).build(4, 6)
    n_params = sum(parameter.numel() for parameter in residual.parameters())
    assert n_params == sum(n_per_source * t + n_more for t in (2, 3, 4))


def test_the_sum_of_what_fell_out_keeps_the_state_small():
    residual = GrnConfig(n_last=2).build(DIM, 20)
    state = residual.start(torch.randn(2, DIM))
    for depth in range(20):
        _, state = residual.read(state, depth)
        state = residual.write(state, depth, torch.randn(2, DIM))
    assert len(state.sources) == 4
    assert state.mix_BTD is state.partial is None


def test_every_vector_that_moves_is_counted():
    residual = GrnConfig(ways="qkv", n_last=1).build(DIM, N_SUBLAYERS)
    found = [residual.traffic(depth) for depth in range(N_SUBLAYERS)]
    assert found[:4] == [(1, 0), (4, 2), (2, 3), (4, 2)]
    assert found[4:6] == [(3, 3), (6, 3)]


def test_a_second_sublayer_goes_on_from_the_first_read():
    residual = GrnConfig().build(DIM, 4)
    state = residual.write(residual.start(torch.ones(DIM)), 0, torch.ones(DIM))
    with pytest.raises(ValueError, match="at depth 1 the sublayer before must be read"):
        residual.read(state, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": 4}, "version must be 1, 2 or 3, got 4"),
        ({"ways": "qkvr"}, "ways must be 'one' or 'qkv', got 'qkvr'"),
        ({"n_last": 0}, "n_last must be a positive integer, got 0"),
        ({"sublayers_per_layer": 0}, "sublayers_per_layer must be a positive integer, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GrnConfig(**settings)


@pytest.mark.parametrize("version", [0, 4, True, 3.0, "3"])
def test_another_version_is_refused(version):
    with pytest.raises(ValueError, match=f"version must be 1, 2 or 3, got {version!r}"):
        GrnConfig(version=version)


def test_what_no_shape_shows_is_described():
    assert GrnConfig(n_last=9).describe(8) == GrnConfig().describe(8)
    assert GrnConfig(n_last=2).describe(8) != GrnConfig().describe(8)
