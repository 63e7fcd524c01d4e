"""What is counted from a method is what is measured, for every method."""

from functools import cache

import pytest
import torch
from depth_methods import CONFIGS

from attnres.cost import count, method_costs
from attnres.cost.counted import eager_work, saved_vectors
from attnres.cost.dispatch import Work
from attnres.cost.methods import DIM, N_TOKENS, measure, variants
from attnres.residual import (
    RESIDUALS,
    AttnResConfig,
    CenteredConfig,
    LayerScaleConfig,
    StandardConfig,
    TwoPhaseConfig,
    format_residual,
    parse_residual,
)

N_SUBLAYERS = 6
SCALARS = 3  # a source, that one implementation of a read may keep beyond another, each float32
VECTORS = 3  # a reader, for any number of tokens: query, key weight and their product
every_config = pytest.mark.parametrize("config", CONFIGS, ids=format_residual)


@cache
def both(config):
    return count(config, DIM, N_SUBLAYERS), measure(config, N_SUBLAYERS)


def in_plain_pytorch(config, device):
    with torch.device(device):
        residual = config.build(DIM, N_SUBLAYERS)
        embed_TD = torch.ones(N_TOKENS, DIM, requires_grad=True)
    for module in residual.modules():
        if hasattr(module, "impl"):
            module.impl = "closed_form"
    return residual, embed_TD


@every_config
def test_saved_bytes_are_counted_without_values_as_with_them(config):
    counted = saved_vectors(*in_plain_pytorch(config, "meta"))
    assert counted == saved_vectors(*in_plain_pytorch(config, "cpu"))


@every_config
def test_the_fastest_implementation_saves_the_same_vectors(config):
    n = N_SUBLAYERS + 1  # readers, and sources of each at most
    of_implementations = n * n * SCALARS / DIM + n * VECTORS / N_TOKENS
    counted, measured = both(config)
    assert measured.saved == pytest.approx(counted.saved, abs=of_implementations)


def test_a_parameter_that_the_backward_needs_is_not_counted_as_saved():
    """At one token the gain of an output is as large as the output."""
    with torch.device("meta"):
        residual = LayerScaleConfig().build(DIM, N_SUBLAYERS)
        embed_TD = torch.empty(1, DIM, requires_grad=True)
    assert saved_vectors(residual, embed_TD) == N_SUBLAYERS


@every_config
def test_no_method_claims_to_move_more_than_plain_pytorch_moves(config):
    counted, measured = both(config)
    assert counted.moved is not None
    assert 0 < counted.moved <= measured.moved


@every_config
def test_parameters_and_work_are_those_of_the_method(config):
    counted, _ = both(config)
    residual = config.build(DIM, N_SUBLAYERS)
    assert counted.n_params == sum(p.numel() for p in residual.parameters())
    embed_TD = torch.randn(N_TOKENS, DIM)
    flops = eager_work(residual, embed_TD).flops / N_TOKENS / N_SUBLAYERS
    assert counted.flops == pytest.approx(flops, rel=0.01)  # decompositions differ in scalars


def test_the_standard_residual_costs_one_addition():
    counted = count(StandardConfig(), 512, 32)
    assert counted.moved == measure(StandardConfig(), 32).moved == 3
    assert (counted.n_params, counted.saved, counted.flops) == (0, 0, 512)
    assert (counted.checkpointed, counted.carried) == (16, 1)


@pytest.mark.parametrize(
    ("config", "n_sources_read", "checkpointed", "carried"),
    [
        (AttnResConfig(), sum(range(2, 34)), 31, 33),
        # 8 blocks of 4: the readers after the first see 1 to 8 finished sources and a partial sum
        (AttnResConfig(n_blocks=8), 8 * 3 + sum(4 * n for n in range(1, 9)) - 1 + 9, 16, 9),
    ],
    ids=["full", "block"],
)
def test_attention_over_depth_keeps_its_sources(config, n_sources_read, checkpointed, carried):
    dim = 4096
    counted = count(config, dim, 32)
    assert counted.n_params == 2 * 32 * dim
    scalars = SCALARS * n_sources_read / dim
    assert 33 <= counted.saved <= 33 + scalars + 32 * VECTORS / 4096
    assert (counted.checkpointed, counted.carried) == (checkpointed, carried)
    n_sums = 0 if config.n_blocks is None else 24
    # square, mean, key, gain, and a multiplication and an addition for each of logit and mix
    plain = 8 * n_sources_read + n_sums
    assert counted.flops * 32 / dim == pytest.approx(plain, rel=0.01)


def test_two_phases_and_the_centered_form_carry_more():
    assert count(CenteredConfig(n_blocks=8), 4096, 32).carried == 10
    in_one, in_two = (count(kind(n_blocks=8), 4096, 32) for kind in (AttnResConfig, TwoPhaseConfig))
    assert in_two.saved > in_one.saved + 20
    assert (in_two.moved or 0) < (in_one.moved or 0)


def test_work_counts_operands_once_and_views_not_at_all():
    left_TD, right_TD = torch.ones(8, 16), torch.ones(8, 16)
    with Work() as work:
        left_TD.view(16, 8).transpose(0, 1)[2:].detach()
        assert (work.n_numbers, work.flops) == (0, 0)
        torch.add(left_TD, right_TD)
        assert (work.n_numbers, work.flops) == (3 * 128, 128)
        torch.mul(left_TD, left_TD)
        assert (work.n_numbers, work.flops) == (5 * 128, 2 * 128)
        left_TD.clone()
        assert (work.n_numbers, work.flops) == (7 * 128, 2 * 128)
        torch.ones(3).expand(100, 3).clone()
        assert work.n_numbers == 7 * 128 + 3 + 3 + 300
        torch.matmul(left_TD, right_TD.T)
        assert work.flops == 2 * 128 + 2 * 8 * 8 * 16


def test_all_methods_are_beside_each_other_once_in_blocks():
    assert {type(config) for config in variants(12).values()} == set(RESIDUALS.values())
    assert variants(12)["attn_res:n_blocks=8"] == AttnResConfig(n_blocks=8)
    assert "attn_res:n_blocks=8" not in variants(8)
    for text, config in (variants(12) | variants(3, sublayers_per_layer=1)).items():
        assert parse_residual(text) == config
    costs = {each.method: each for each in method_costs(64, 4, n_blocks=2)}
    assert len(costs) == len(variants(4, 2))
    block = costs["attn_res:n_blocks=2"]
    assert block.counted == count(AttnResConfig(n_blocks=2), 64, 4)
    assert (block.starts_as, costs["standard"].starts_as) == ("multiple", "standard")


def test_a_table_of_methods_leaves_the_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    method_costs(16, 4, n_blocks=2)
    assert torch.equal(torch.rand(3), expected)
