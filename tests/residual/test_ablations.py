"""What ablations of AttnRes add, how they are described, and which of them are refused."""

import math
from typing import Any

import pytest
import torch

from attnres import AttnRes
from attnres.residual import AttnResConfig
from attnres.residual.ablated import Ablated

DIM, N_SUBLAYERS = 6, 4
EACH: tuple[dict[str, Any], ...] = (
    {"query": "input"},
    {"weights": "scalars"},
    {"kernel": "sigmoid"},
    {"key_norm": False},
    {"n_heads": 3},
    {"key_rank": 4},
    {"null_source": True},
    {"routes": "qk_v"},
)


def test_only_attentions_after_the_first_have_ways():
    residual = AttnResConfig(routes="qk_v").build(DIM, 7)
    assert [depth for depth in range(8) if residual.has_ways(depth)] == [2, 4, 6]
    assert not any(AttnResConfig(n_heads=2).build(DIM, 7).has_ways(depth) for depth in range(8))


def test_parameters_added():
    sizes = {
        AttnResConfig(query="input"): DIM * DIM + DIM,
        AttnResConfig(kernel="sigmoid"): 2 * DIM,
        AttnResConfig(key_norm=False): DIM,
        AttnResConfig(key_rank=2): 4,
        AttnResConfig(n_heads=3, null_source=True): 2 * DIM + 3,
    }
    for config, size in sizes.items():
        residual = config.build(DIM, N_SUBLAYERS)
        assert sum(p.numel() for p in residual.parameters()) == N_SUBLAYERS * size, config
    scalars = AttnResConfig(weights="scalars").build(DIM, N_SUBLAYERS)
    assert sum(p.numel() for p in scalars.parameters()) == 2 + 3 + 4 + 5
    routes = AttnResConfig(routes="qk_v").build(DIM, N_SUBLAYERS)
    assert sum(p.numel() for p in routes.parameters()) == N_SUBLAYERS * 2 * DIM + DIM


def test_projections_of_queries_are_trained_as_matrices():
    projections, others = AttnResConfig(query="input").build(16, 2).tuning()
    assert projections.names == ("readers.1.query", "readers.2.query")
    assert projections.lr_scale == 0.25
    assert projections.is_decayed
    assert others.names == ("readers.1.key_weight", "readers.2.key_weight")
    assert not others.is_decayed
    (all_alike,) = AttnResConfig(kernel="sigmoid").build(16, 2).tuning()
    assert not all_alike.is_decayed


def test_traffic_is_that_of_attn_res_and_what_a_change_adds():
    full = AttnResConfig().build(DIM, 6)
    assert AttnResConfig(n_heads=2).build(DIM, 6).traffic(4) == full.traffic(4)
    n_read, n_written = full.traffic(4)
    assert AttnResConfig(query="input").build(DIM, 6).traffic(4) == (n_read + 2, n_written + 1)
    assert AttnResConfig(routes="qk_v").build(DIM, 6).traffic(4) == (n_read, n_written + 1)
    low = AttnResConfig(query="input", key_rank=3).build(DIM, 6)
    assert low.traffic(4) == (n_read + 1.5, n_written + 0.5)
    assert low.traffic(0) == full.traffic(0)


def test_nothing_set_is_attn_res_itself():
    assert type(AttnResConfig(n_blocks=2).build(DIM, 4)) is AttnRes
    assert type(AttnResConfig(n_blocks=2, n_heads=1, kernel="softmax").build(DIM, 4)) is AttnRes
    assert type(AttnResConfig(n_blocks=2, n_heads=2).build(DIM, 4)) is Ablated
    assert set(AttnResConfig(n_blocks=2).describe(4)) == {"layout", "eps"}


def test_a_checkpoint_says_what_changes_its_function_and_no_more():
    plain = AttnResConfig().describe(4)
    neutrals: tuple[dict[str, Any], ...] = (
        {"n_heads": 1},
        {"query_std": 0.1},
        {"key_norm": True},
        {"null_source": False},
        {"count_prior": 0.0},
    )
    for neutral in neutrals:
        assert AttnResConfig(**neutral).describe(4) == plain
    for changes in EACH:
        assert AttnResConfig(**changes).describe(4) == {**plain, **changes}


def test_a_count_prior_of_zero_rules_nothing_out():
    settings = {"kernel": "sigmoid", "count_prior": 0.0}
    assert AttnResConfig(**settings).describe(4) == AttnResConfig(kernel="sigmoid").describe(4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "output"}, "query must be 'input', got 'output'"),
        ({"weights": "softmax"}, "weights must be 'scalars', got 'softmax'"),
        ({"kernel": "relu"}, "kernel must be 'softmax' or 'sigmoid', got 'relu'"),
        ({"key_norm": 0}, "key_norm must be True or False, got 0"),
        ({"null_source": "yes"}, "null_source must be True or False, got 'yes'"),
        ({"n_heads": 0}, "n_heads must be a positive integer, got 0"),
        ({"key_rank": 2.0}, "key_rank must be a positive integer, got 2.0"),
        ({"query_std": 0}, "query_std must be positive, got 0"),
        ({"query_std": "a"}, "query_std must be a finite number, got 'a'"),
        ({"count_prior": True}, "count_prior must be a finite number, got True"),
        ({"count_power": math.inf}, "count_power must be a finite number, got inf"),
        ({"routes": "q_k_v"}, "routes must be 'qk_v', got 'q_k_v'"),
        ({"weights": "scalars", "n_heads": 2}, "weights='scalars' and n_heads=2 rule each other"),
        ({"weights": "scalars", "key_norm": False}, "'scalars' and key_norm=False rule each other"),
        ({"query": "input", "routes": "qk_v"}, "query='input' and routes='qk_v' rule each other"),
        ({"query": "input", "query_std": 0.1}, "query='input' and query_std=0.1 rule each other"),
        ({"n_heads": 2, "key_rank": 4}, "n_heads=2 and key_rank=4 rule each other out"),
        ({"kernel": "sigmoid", "null_source": True}, "'sigmoid' and null_source=True rule each"),
        ({"kernel": "sigmoid", "count_prior": 1}, "'sigmoid' and count_prior=1 rule each other"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        AttnResConfig(**changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AttnResConfig(n_heads=4), "n_heads=4 does not divide the width 6"),
        (AttnResConfig(key_rank=7), "key_rank=7 is more than the width 6"),
        (AttnResConfig(count_prior=1.0), "count_prior=1.0 changes nothing in Full"),
        (AttnResConfig(sublayers_per_block=1, count_power=2), "count_power=2 changes nothing in"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_where_it_is_built(config, message):
    with pytest.raises(ValueError, match=message):
        config.build(DIM, N_SUBLAYERS)


def test_the_read_before_the_first_is_the_embedding():
    residual: Any = AttnResConfig(query="input").build(DIM, N_SUBLAYERS)
    embed_TD = torch.randn(2, DIM)
    state = residual.start(embed_TD)
    assert state.before is residual.read(state, 0)[1].before is embed_TD
    assert AttnResConfig(n_heads=2).build(DIM, N_SUBLAYERS).start(embed_TD).before is None
