"""DenseFormer by hand: averages of cumulative states, with dilation and period."""

import pytest
import torch
from depth_methods import random_residual, run_alone

from attnres.residual import DenseFormer, DenseFormerConfig

DIM = 5


def by_hand(residual: DenseFormer, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Every read, from the paper's weights: one for the newest at the start, which is added."""
    states, stream, reads = [outputs[0]], outputs[0], []
    for depth in range(residual.n_sublayers):
        reads.append(stream)
        stream = stream + outputs[depth + 1]
        layer, rest = divmod(depth + 1, residual.sublayers_per_layer)
        if rest:
            continue
        states.append(stream)
        if layer % residual.period == 0:
            added = residual.averages[layer // residual.period - 1]
            indices = [j for j in range(layer + 1) if (layer - j) % residual.dilation == 0]
            assert len(added) == len(indices)
            total = torch.zeros_like(stream)
            for weight, j in zip(added, indices, strict=True):
                total = total + (weight + (1.0 if j == layer else 0.0)) * states[j]
            stream = total
    return [*reads, stream]


@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("sublayers_per_layer", [1, 2])
def test_reads_are_those_done_by_hand(dilation, period, sublayers_per_layer):
    config = DenseFormerConfig(
        dilation=dilation, period=period, sublayers_per_layer=sublayers_per_layer
    )
    residual = random_residual(config, DIM, 12).double()
    assert isinstance(residual, DenseFormer)
    reads, outputs = run_alone(residual, torch.randn(2, 3, DIM, dtype=torch.float64))
    torch.testing.assert_close(reads, by_hand(residual, outputs), atol=1e-12, rtol=1e-12)


def test_two_layers_in_numbers():
    residual = DenseFormer(1, 4).double()
    first, second = residual.averages
    first.data.copy_(torch.tensor([0.5, 1.0]))
    second.data.copy_(torch.tensor([1.0, -1.0, 0.0]))
    state = residual.start(torch.ones(1))
    for depth in range(4):
        _, state = residual.read(state, depth)
        state = residual.write(state, depth, torch.ones(1))
    # X_1 = 3, Y_1 = 0.5 * 1 + 2 * 3; X_2 = 8.5, Y_2 = 1 - 3 + 8.5
    assert residual.finish(state).item() == 6.5


def test_every_vector_that_moves_is_counted():
    residual = DenseFormer(DIM, 8)
    assert [residual.traffic(depth) for depth in (0, 1, 3, 7)] == [(2, 1), (3, 2), (4, 2), (6, 1)]
    sparse = DenseFormer(DIM, 16, dilation=4, period=4)
    assert [sparse.traffic(depth) for depth in (5, 7, 15)] == [(2, 1), (3, 2), (4, 1)]


def test_no_weight_is_decayed():
    (tuning,) = DenseFormer(DIM, 4).tuning()
    assert tuning.names == ("averages.0", "averages.1")
    assert not tuning.is_decayed


@pytest.mark.parametrize("name", ["dilation", "period", "sublayers_per_layer"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_wrong_count_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {value}"):
        DenseFormerConfig(**{name: value})


def test_sublayers_that_fill_no_layers_are_refused():
    with pytest.raises(ValueError, match="sublayers_per_layer=2 does not divide 3 sublayers"):
        DenseFormerConfig().build(DIM, 3)


def test_a_state_out_of_step_is_refused():
    residual = DenseFormer(DIM, 4)
    state = residual.start(torch.ones(DIM))
    with pytest.raises(ValueError, match="1 sources, at depth 2 there are 2"):
        residual.read(state, 2)
