"""LAuReL: the recurrence by hand in every combination, its start, and what it costs."""

import pytest
import torch
from by_hand import (
    DIM,
    assert_reads,
    assert_starts_as_it_says,
    branches,
    embedding,
    randomise,
)
from torch import nn

from attnres.residual.laurel import Join, Laurel, LaurelConfig

COMBINATIONS = {
    "rw": {"weights": True},
    "lr": {"weights": False, "rank": 2},
    "pa": {"weights": False, "n_previous": 2},
    "rw + lr": {"weights": True, "rank": 2},
    "rw + pa": {"weights": True, "n_previous": 1},
    "all": {"weights": True, "rank": 2, "n_previous": 2},
}
every_combination = pytest.mark.parametrize("settings", COMBINATIONS.values(), ids=COMBINATIONS)


@every_combination
def test_recurrence_by_hand(settings):
    residual = randomise(Laurel(DIM, 4, **settings))
    streams = [embedding()]  # h_0, h_1, ...
    for depth, (join, branch) in enumerate(zip(residual.joins, branches(4), strict=True)):
        h_TD = streams[depth]
        a, b = (join.branch_weight, join.stream_weight) if settings["weights"] else (1, 1)
        new_TD = a * branch(h_TD) + b * h_TD
        map_DD = torch.eye(DIM, dtype=torch.float64)
        mapped_TD = torch.zeros_like(h_TD)
        if settings.get("rank"):
            map_DD = (join.up.T @ join.down.T).T  # a row vector from the left
            mapped_TD = h_TD @ map_DD
        for j in range(1, settings.get("n_previous", 0) + 1):
            if depth >= j:
                mapped_TD = mapped_TD + join.previous_weight[j - 1] * streams[depth - j] @ map_DD
        streams.append(new_TD + mapped_TD)
    assert_reads(residual, streams)


@every_combination
def test_starts_as_the_standard_model(settings):
    assert_starts_as_it_says(LaurelConfig(**settings).build(DIM, 4), "standard")


def test_every_parameter_of_the_start_learns_within_two_steps():
    torch.manual_seed(0)
    residual = Laurel(DIM, 4, weights=True, rank=2, n_previous=2).double()
    learnt: set[str] = set()
    for _ in range(2):
        state = residual.start(embedding())
        for depth, branch in enumerate(branches(4)):
            h_TD, state = residual.read(state, depth)
            state = residual.write(state, depth, branch(h_TD))
        residual.zero_grad()
        (residual.finish(state) * torch.arange(DIM)).sum().backward()
        for name, parameter in residual.named_parameters():
            assert parameter.grad is not None, name
            learnt |= {name} if parameter.grad.abs().max() > 0 else set()
            parameter.data -= 0.1 * parameter.grad
    assert learnt == {name for name, _ in residual.named_parameters()}


def test_a_stream_that_does_not_exist_has_no_weight():
    residual = Laurel(DIM, 4, n_previous=2)
    weights = [join.previous_weight for join in residual.joins if isinstance(join, Join)]
    assert weights[0] is None
    assert [len(weight) for weight in weights if weight is not None] == [1, 2, 2]


def test_sizes_traffic_and_tuning():
    residual = Laurel(DIM, 3, weights=True, rank=2)
    assert sum(p.numel() for p in residual.parameters()) == 3 * (2 + 2 * 2 * DIM)
    assert Laurel(DIM, 3).traffic(0) == (2, 1)
    assert Laurel(DIM, 3, rank=2).traffic(0) == (3, 1)
    assert [Laurel(DIM, 3, n_previous=5).traffic(d).n_read for d in range(3)] == [2, 3, 4]
    assert Laurel(DIM, 3, rank=2, n_previous=2).traffic(2) == (5, 1)
    maps, weights = residual.tuning()
    assert maps.is_decayed
    assert {name.rpartition(".")[2] for name in maps.names} == {"down", "up"}
    assert not weights.is_decayed
    (only,) = Laurel(DIM, 3, n_previous=1).tuning()
    assert not only.is_decayed


def test_the_map_starts_in_bfloat16_too():
    residual = Laurel(64, 1, rank=4).bfloat16()
    residual.reset_parameters()
    up = residual.get_parameter("joins.0.up")
    assert isinstance(up, nn.Parameter)
    assert up.float().std().item() == pytest.approx(64**-0.5, rel=0.2)
    assert not residual.get_parameter("joins.0.down").any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a positive integer, got 0"),
        ({"n_previous": -1}, "n_previous must be an integer from 0 on, got -1"),
        ({"n_previous": True}, "n_previous must be an integer from 0 on, got True"),
        ({"weights": 1}, "weights must be True or False, got 1"),
        ({"weights": False}, "weights=False, no rank and n_previous=0 is the standard residual"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LaurelConfig(**settings)
