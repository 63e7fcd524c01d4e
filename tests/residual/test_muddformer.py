"""MUDDFormer by hand: each token's weights of cumulative states, for one way or four."""

import math
from typing import Any

import pytest
import torch
from depth_methods import one_input, random_residual
from torch import Tensor

from attnres.residual import MuddFormer, MuddFormerConfig, Ways

DIM, N_SUBLAYERS = 5, 6


def weights_by_hand(aggregate: Any, newest_D: Tensor) -> list[list[float]]:
    """A of one token, by way and state."""
    n_ways, n_states = aggregate.static.shape
    rms = math.sqrt(sum(x * x for x in newest_D.tolist()) / DIM + aggregate.eps)
    hidden = []
    for k in range(n_ways * n_states):
        z = sum(newest_D[d].item() / rms * aggregate.hidden[d, k].item() for d in range(DIM))
        hidden.append(z / 2 * (1 + math.erf(z / math.sqrt(2))))
    found = []
    for c in range(n_ways):
        row = []
        for j in range(n_states):
            column = aggregate.out[:, c * n_states + j].tolist()
            dynamic = sum(h * w for h, w in zip(hidden, column, strict=True))
            row.append(dynamic + aggregate.static[c, j].item() + (j == n_states - 1))
        found.append(row)
    return found


@pytest.mark.parametrize("ways", ["residual", "qkvr"])
def test_reads_are_those_done_by_hand(ways):
    residual = random_residual(MuddFormerConfig(ways=ways), DIM, N_SUBLAYERS).double()
    assert isinstance(residual, MuddFormer)
    outputs = torch.randn(N_SUBLAYERS + 1, DIM, dtype=torch.float64)
    state, stream_D, states = residual.start(outputs[0]), outputs[0], [outputs[0]]
    expected: Any = stream_D
    for depth in range(N_SUBLAYERS):
        found, state = residual.read(state, depth)
        assert isinstance(found, Ways) == residual.has_ways(depth)
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)
        state = residual.write(state, depth, outputs[depth + 1])
        expected = stream_D = stream_D + outputs[depth + 1]
        if depth % 2 == 0:
            continue
        states.append(stream_D)
        weights = weights_by_hand(residual.aggregates[depth // 2], stream_D)
        *mixes, stream_D = [
            sum((w * x for w, x in zip(row, states, strict=True)), torch.zeros(DIM).double())
            for row in weights
        ]
        expected = Ways(*mixes) if mixes else stream_D
    torch.testing.assert_close(residual.finish(state), expected, atol=1e-11, rtol=1e-11)


def test_ways_begin_after_the_first_layer_and_the_last_has_one():
    residual = MuddFormer(DIM, N_SUBLAYERS)
    assert [depth for depth in range(6) if residual.has_ways(depth)] == [2, 4]
    assert residual.ways_by_layer == (4, 4, 1)
    assert not any(MuddFormer(DIM, 6, "residual").has_ways(depth) for depth in range(6))


def test_at_the_start_all_ways_are_the_stream_bit_for_bit():
    residual = MuddFormer(DIM, N_SUBLAYERS)
    stream_TD = torch.randn(2, DIM).bfloat16()
    state = residual.start(stream_TD)
    for depth in range(N_SUBLAYERS):
        mix, state = residual.read(state, depth)
        for way_TD in mix if isinstance(mix, Ways) else (mix,):
            assert torch.equal(way_TD, stream_TD)
        out_TD = torch.randn(2, DIM).bfloat16()
        state, stream_TD = residual.write(state, depth, out_TD), stream_TD + out_TD


def test_one_step_of_training_wakes_what_has_no_gradient_at_the_start():
    torch.manual_seed(0)
    residual = MuddFormer(DIM, 4)
    optimizer = torch.optim.SGD(residual.parameters(), lr=0.1)
    for step in range(2):
        state = residual.start(torch.randn(3, DIM))
        for depth in range(4):
            mix, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(one_input(mix)))
        optimizer.zero_grad()
        residual.finish(state).square().sum().backward()
        optimizer.step()
        for name, parameter in residual.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.any() == (step > 0 or not name.endswith("hidden")), name


def test_matrices_are_decayed_and_static_parts_are_not():
    residual = MuddFormer(DIM, N_SUBLAYERS)
    matrices, static = residual.tuning()
    assert matrices.is_decayed
    assert not static.is_decayed
    assert {name.split(".")[-1] for name in matrices.names} == {"hidden", "out"}
    assert {name.split(".")[-1] for name in static.names} == {"static"}
    names = [*matrices.names, *static.names]
    assert sorted(names) == sorted(name for name, _ in residual.named_parameters())


def test_parameters_and_vectors_that_move_are_counted():
    """W1 is d x C(i+2), W2 C(i+2) squared, the static part C(i+2), for layer i from 0."""
    residual = MuddFormer(DIM, 4)
    n_params = sum(parameter.numel() for parameter in residual.parameters())
    assert n_params == (DIM * 8 + 8 * 8 + 8) + (DIM * 3 + 3 * 3 + 3)
    assert [residual.traffic(depth) for depth in range(4)] == [(2, 1), (3, 5), (2, 1), (4, 1)]


def test_unknown_ways_are_refused():
    with pytest.raises(ValueError, match="ways must be 'residual' or 'qkvr', got 'qk'"):
        MuddFormerConfig(ways="qk")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="eps must be finite"):
        MuddFormerConfig(eps=-1.0)
