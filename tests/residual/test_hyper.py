"""Hyper-Connections: the recurrence by hand, stream by stream, and that streams part."""

import pytest
import torch
from by_hand import (
    DIM,
    assert_reads,
    assert_starts_as_it_says,
    branches,
    embedding,
    randomise,
    reads,
)
from torch import Tensor

from attnres.residual.hyper import HyperConnections, HyperConnectionsConfig

N_STREAMS, EPS = 3, 1e-3


def _weights(connection, streams: list[Tensor], depth: int):
    """a [N], A [N][N] and b [N] of one token, from its streams, each [D]."""
    read, carry, write = connection.read, connection.carry, connection.write
    a = [read[i] + (i == depth % N_STREAMS) for i in range(N_STREAMS)]
    A = [[carry[i, j] + (i == j) for j in range(N_STREAMS)] for i in range(N_STREAMS)]
    b = [write[i] + 1 for i in range(N_STREAMS)]
    dynamic = connection.dynamic
    if dynamic is not None:
        for i, x_D in enumerate(streams):
            x_D = x_D / ((x_D**2).mean() + EPS).sqrt()
            a[i] = a[i] + dynamic.scale[0] * torch.tanh(x_D @ dynamic.read[:, 0])
            b[i] = b[i] + dynamic.write_scale[0] * torch.tanh(x_D @ dynamic.write[:, 0])
            for j in range(N_STREAMS):
                A[i][j] = A[i][j] + dynamic.scale[0] * torch.tanh(x_D @ dynamic.carry[:, j])
    return a, A, b


def _weighted_sum(weights, vectors: list[Tensor]) -> Tensor:
    total = torch.zeros_like(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        total = total + weight * vector
    return total


@pytest.mark.parametrize("dynamic", [False, True])
def test_recurrence_by_hand(dynamic):
    residual = randomise(HyperConnections(DIM, 4, N_STREAMS, dynamic, EPS))
    streams_T = [[row_D] * N_STREAMS for row_D in embedding()]
    expected = []
    for depth, branch in enumerate(branches(4)):
        weights_T = [_weights(residual.connections[depth], X, depth) for X in streams_T]
        a_T = [a for a, _, _ in weights_T]
        h_TD = torch.stack([_weighted_sum(a, X) for a, X in zip(a_T, streams_T, strict=True)])
        expected.append(h_TD)
        for t, out_D in enumerate(branch(h_TD)):
            _, A, b = weights_T[t]
            columns = [[A[i][j] for i in range(N_STREAMS)] for j in range(N_STREAMS)]
            streams_T[t] = [
                _weighted_sum([*column, b[j]], [*streams_T[t], out_D])
                for j, column in enumerate(columns)
            ]
    mean_TD = torch.stack([torch.stack(X).mean(0) for X in streams_T])
    assert_reads(residual, [*expected, mean_TD])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_starts_as_the_standard_model(dynamic, n_streams):
    config = HyperConnectionsConfig(n_streams=n_streams, dynamic=dynamic)
    assert_starts_as_it_says(config.build(DIM, 6), "standard")


def test_streams_part_with_the_first_step():
    residual = HyperConnections(DIM, 4, n_streams=2).double()
    torch.stack(list(reads(residual, embedding()))[-1:]).square().sum().backward()
    for depth, parameter in enumerate(c.get_parameter("write") for c in residual.connections):
        assert parameter.grad is not None
        if depth < 2:  # later outputs are read by streams of both kinds no more
            assert parameter.grad[0] != parameter.grad[1]


def test_sizes_traffic_and_tuning():
    static, dynamic = HyperConnections(DIM, 1, dynamic=False), HyperConnections(DIM, 1)
    assert sum(p.numel() for p in static.parameters()) == 4 * 4 + 2 * 4
    assert sum(p.numel() for p in dynamic.parameters()) == DIM * (4 + 2) + 4 * 4 + 2 * 4 + 2
    assert dynamic.traffic(0) == (21, 13)
    assert static.traffic(0) == (17, 13)
    matrices, others = dynamic.tuning()
    assert matrices.is_decayed
    assert matrices.names == tuple(f"connections.0.dynamic.{n}" for n in ("read", "carry", "write"))
    assert not others.is_decayed
    assert len(others.names) == 5
    assert [group.is_decayed for group in static.tuning()] == [False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_streams": 0}, "n_streams must be a positive integer, got 0"),
        ({"dynamic": "yes"}, "dynamic must be True or False, got 'yes'"),
        ({"eps": -1.0}, "eps must be finite and not negative, got -1.0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HyperConnectionsConfig(**settings)
