"""mHC: the recurrence by hand, what its constraints give, and that even reads keep streams one."""

import math
from itertools import permutations

import pytest
import torch
from by_hand import (
    DIM,
    N_TOKENS,
    assert_reads,
    assert_starts_as_it_says,
    branches,
    embedding,
    randomise,
    reads,
)
from torch import Tensor

from attnres.residual.mhc import (
    ManifoldHyperConnections,
    ManifoldHyperConnectionsConfig,
    mean_permutation,
    sinkhorn,
    start_shares,
)

N, EPS = 3, 1e-3
every_constraint = pytest.mark.parametrize("constraint", ["sinkhorn", "permutation", "identity"])
every_reading = pytest.mark.parametrize("reading", ["cyclic", "even"])


def _coefficients(part, x_D: Tensor, start: list[float]) -> Tensor:
    return torch.stack(
        [
            part.scale[0] * (x_D * part.weight[:, c]).sum() + part.bias[c] + start[c]
            for c in range(len(start))
        ]
    )


def _carry(connection, x_D: Tensor, constraint: str) -> Tensor:
    """H of one token by loops: 20 times columns, then rows; or all permutations in turn."""
    if constraint == "identity" or connection.carry is None:
        return torch.eye(N, dtype=torch.float64)
    if constraint == "sinkhorn":
        start = [0.0 if i == j else -8.0 for i in range(N) for j in range(N)]
        H_NN = _coefficients(connection.carry, x_D, start).exp().reshape(N, N)
        for _ in range(20):
            H_NN = H_NN / H_NN.sum(0)
            H_NN = (H_NN.T / H_NN.sum(1)).T
        return H_NN
    orders = list(permutations(range(N)))
    shares = _coefficients(connection.carry, x_D, [0.0] + [-8.0] * (len(orders) - 1)).exp()
    H_NN = torch.zeros(N, N, dtype=torch.float64)
    for share, order in zip(shares / shares.sum(), orders, strict=True):
        for i, j in enumerate(order):
            H_NN[i, j] += share
    return H_NN


@every_constraint
@every_reading
def test_recurrence_by_hand(constraint, reading):
    residual = randomise(ManifoldHyperConnections(DIM, 4, N, constraint, reading, EPS))
    streams_T = [torch.stack([row_D] * N) for row_D in embedding()]  # each [N, D]
    expected = []
    with torch.no_grad():
        for depth, branch in enumerate(branches(4)):
            connection = residual.connections[depth]
            shares = [0.9 if i == depth % N else 0.05 for i in range(N)]
            shares = shares if reading == "cyclic" else [1 / N] * N
            x_T = [X.flatten() / ((X**2).mean() + EPS).sqrt() for X in streams_T]
            start = [math.log(p) - math.log(1 - p) for p in shares]
            p_T = [_coefficients(connection.read, x_D, start).sigmoid() for x_D in x_T]
            h_TD = torch.stack([p_T[t] @ streams_T[t] for t in range(N_TOKENS)])
            expected.append(h_TD)
            for t, out_D in enumerate(branch(h_TD)):
                q_N = 2 * _coefficients(connection.write, x_T[t], [0.0] * N).sigmoid()
                H_NN = _carry(connection, x_T[t], constraint)
                streams_T[t] = H_NN @ streams_T[t] + torch.outer(q_N, out_D)
        expected.append(torch.stack([X.mean(0) for X in streams_T]))
        assert_reads(residual, expected)


@every_constraint
@every_reading
def test_starts_as_the_standard_model(constraint, reading):
    config = ManifoldHyperConnectionsConfig(constraint=constraint, reading=reading)
    assert_starts_as_it_says(config.build(DIM, 6), "standard")


def test_a_permutation_mean_is_doubly_stochastic():
    H_NN = mean_permutation(torch.randn(7, 24, dtype=torch.float64), 4)
    ones = torch.ones(7, 4, dtype=torch.float64)
    torch.testing.assert_close(H_NN.sum(-1), ones)
    torch.testing.assert_close(H_NN.sum(-2), ones)
    assert torch.equal(mean_permutation(torch.tensor([0.0, *[-1e9] * 23]), 4), torch.eye(4))


def test_sinkhorn_ends_with_rows_that_add_up_and_columns_that_nearly_do():
    torch.manual_seed(0)
    H_NN = sinkhorn(torch.randn(7, 4, 4, dtype=torch.float64))
    ones = torch.ones(7, 4, dtype=torch.float64)
    torch.testing.assert_close(H_NN.sum(-1), ones)
    torch.testing.assert_close(H_NN.sum(-2), ones, atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_sinkhorn_of_large_logits_is_finite(size):
    logits_NN = (size * torch.randn(5, 4, 4)).requires_grad_()
    sinkhorn(logits_NN).square().sum().backward()
    assert logits_NN.grad is not None
    assert logits_NN.grad.isfinite().all()


@pytest.mark.parametrize("n_streams", [2, 3, 4])
@every_reading
def test_shares_add_up_to_one(n_streams, reading):
    for depth in range(5):
        assert sum(start_shares(n_streams, depth, reading)) == pytest.approx(1, abs=1e-15)


@every_reading
def test_only_uneven_reads_part_the_streams(reading):
    """The gradient of q differs by stream, or not at all: then streams stay one for ever."""
    residual = ManifoldHyperConnections(DIM, 6, n_streams=2, reading=reading).double()
    *_, last_TD = reads(residual, embedding())
    last_TD.square().sum().backward()
    gradient = residual.get_parameter("connections.0.write.bias").grad
    assert gradient is not None
    differs = (gradient[0] - gradient[1]).abs() > 1e-3 * gradient.abs().max()
    assert differs == (reading == "cyclic")


def test_sizes_traffic_and_tuning():
    residual = ManifoldHyperConnections(DIM, 2, n_streams=4)
    first, second = (sum(p.numel() for p in c.parameters()) for c in residual.connections)
    assert second == 4 * DIM * (4**2 + 2 * 4) + 4**2 + 2 * 4 + 3
    assert first == 4 * DIM * (2 * 4) + 2 * 4 + 2
    assert residual.traffic(1).total == 8 * 4 + 2  # arXiv:2603.15031, table 1
    assert ManifoldHyperConnections(DIM, 2, 2).traffic(1).total == 8 * 2 + 2
    identity = ManifoldHyperConnections(DIM, 2, constraint="identity")
    assert identity.traffic(1) == (17, 9)
    assert residual.traffic(0) == identity.traffic(0)  # the first sublayer has no H
    weights, others = residual.tuning()
    assert weights.is_decayed
    assert {name.rpartition(".")[2] for name in weights.names} == {"weight"}
    assert not others.is_decayed
    assert {name.rpartition(".")[2] for name in others.names} == {"bias", "scale"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_streams": 1}, "n_streams must be 2 or more, got 1"),
        ({"n_streams": 2.0}, "n_streams must be a positive integer, got 2.0"),
        ({"constraint": "none"}, "one of sinkhorn, permutation, identity, got 'none'"),
        ({"constraint": "permutation", "n_streams": 6}, "up to 5 for all permutations, got 6"),
        ({"reading": "first"}, "reading must be 'cyclic' or 'even', got 'first'"),
        ({"eps": float("nan")}, "eps must be finite and not negative, got nan"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ManifoldHyperConnectionsConfig(**settings)
