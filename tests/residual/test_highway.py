"""Highway: the recurrence by hand, what a gate of the start lets through, rows that sum to one."""

import pytest
import torch
from by_hand import DIM, assert_reads, branches, embedding, randomise
from depth_methods import run_alone

from attnres.analysis.mixing import mixing_matrix
from attnres.residual.highway import Highway, HighwayConfig


@pytest.mark.parametrize("gate", ["scalar", "dense"])
def test_recurrence_by_hand(gate):
    residual = randomise(Highway(DIM, 3, gate))
    h_TD = embedding()
    expected = [h_TD]
    for gates, branch in zip(residual.gates, branches(3), strict=True):
        rows = []
        for h_D, out_D in zip(h_TD, branch(h_TD), strict=True):
            g = 1 / (1 + torch.exp(-(h_D[:, None] * gates.weight).sum(0) - gates.bias))
            rows.append(h_D - g * h_D + g * out_D)
        h_TD = torch.stack(rows)
        expected.append(h_TD)
    assert_reads(residual, expected)


@pytest.mark.parametrize("gate", ["scalar", "dense"])
def test_every_gate_starts_at_its_bias(gate):
    residual = Highway(DIM, 1, gate, bias=-1.5).double()
    out_TD = torch.ones_like(embedding())
    g = torch.tensor(-1.5, dtype=torch.float64).sigmoid()
    actual = residual.write(embedding(), 0, out_TD)
    torch.testing.assert_close(actual, (1 - g) * embedding() + g, atol=1e-14, rtol=1e-14)


def test_rows_of_scalar_gates_are_broken_sticks():
    residual = randomise(Highway(DIM, 6))
    _, outputs = run_alone(residual, embedding())
    mixing_LLT = mixing_matrix(residual, outputs)
    ones_LT = torch.ones_like(mixing_LLT[0])
    torch.testing.assert_close(mixing_LLT.sum(1), ones_LT)
    assert (mixing_LLT >= 0).all()


def test_sizes_traffic_and_tuning():
    scalar, dense = Highway(DIM, 2), Highway(DIM, 2, "dense")
    assert sum(p.numel() for p in scalar.parameters()) == 2 * (DIM + 1)
    assert sum(p.numel() for p in dense.parameters()) == 2 * (DIM**2 + DIM)
    assert (scalar.traffic(0).total, dense.traffic(1).total) == (3, 4)
    assert [group.is_decayed for group in scalar.tuning()] == [False]
    matrices, biases = dense.tuning()
    assert matrices.is_decayed
    assert matrices.names == ("gates.0.weight", "gates.1.weight")
    assert biases.names == ("gates.0.bias", "gates.1.bias")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate": "vector"}, "gate must be 'scalar' or 'dense', got 'vector'"),
        ({"bias": float("inf")}, "bias must be a finite number, got inf"),
        ({"bias": "-2"}, "bias must be a finite number, got '-2'"),
        ({"bias": True}, "bias must be a finite number, got True"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HighwayConfig(**settings)
