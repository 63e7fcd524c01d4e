"""The depth mixing matrix rebuilds what every method reads, and has the rank that theory gives."""

import pytest
import torch
from depth_methods import CONFIGS, MIXES_CHANNELS, WEIGHS_CHANNELS, random_residual, run_alone

from attnres.analysis.mixing import mixing_matrix, off_diagonal_rank, summary
from attnres.residual import (
    AttnResConfig,
    DeltaConfig,
    DenseFormerConfig,
    HighwayConfig,
    HyperConnectionsConfig,
    LaurelConfig,
    ManifoldHyperConnectionsConfig,
    MuddFormerConfig,
    ReZeroConfig,
    StandardConfig,
    Ways,
    WindowConfig,
    format_residual,
)
from attnres.residual.base import Parts

DIM, N_SUBLAYERS = 6, 8
MIXED = [config for config in CONFIGS if config not in MIXES_CHANNELS]
SCALARS = [config for config in MIXED if config not in WEIGHS_CHANNELS]


@pytest.mark.parametrize("config", SCALARS, ids=format_residual)
def test_rows_rebuild_every_read(config):
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    reads, outputs = run_alone(residual, torch.randn(2, 3, DIM, dtype=torch.float64))
    mixing_RLBT = mixing_matrix(residual, outputs)
    assert mixing_RLBT.shape == (N_SUBLAYERS + 1, N_SUBLAYERS + 1, 2, 3)
    rebuilt = torch.einsum("rlbt,lbtd->rbtd", mixing_RLBT, torch.stack(outputs))
    torch.testing.assert_close(rebuilt, torch.stack(reads), atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("config", MIXED, ids=format_residual)
def test_rows_are_the_mean_over_channels(config):
    """Of outputs that are one number in all channels, a mean of weights gives the mean read."""
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    torch.manual_seed(2)
    outputs = [torch.randn(2, 1, dtype=torch.float64).expand(2, DIM) for _ in range(9)]
    state, reads = residual.start(outputs[0]), []
    for depth, out_BD in enumerate(outputs[1:]):
        mix, state = residual.read(state, depth)
        reads.append(mix.value_BTD if isinstance(mix, Ways) else mix)
        state = residual.write(state, depth, out_BD)
    read_RBD = torch.stack([*reads, residual.finish(state)])
    rebuilt_RB = torch.einsum(
        "rlb,lb->rb", mixing_matrix(residual, outputs), torch.stack(outputs).mean(-1)
    )
    torch.testing.assert_close(rebuilt_RB, read_RBD.mean(-1), atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("config", MIXED, ids=format_residual)
def test_no_read_has_a_part_of_what_comes_later(config):
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    _, outputs = run_alone(residual, torch.randn(1, DIM, dtype=torch.float64))
    mixing_RL = mixing_matrix(residual, outputs)[..., 0]
    assert torch.equal(mixing_RL, mixing_RL.tril())


@pytest.mark.parametrize("config", [c for c in CONFIGS if c not in MIXED], ids=format_residual)
def test_a_method_that_mixes_channels_says_so(config):
    residual = random_residual(config, DIM, 2)
    with pytest.raises(NotImplementedError, match=type(residual).__name__):
        mixing_matrix(residual, [torch.ones(1, DIM)] * 3)


RANKS = {  # of 32 sublayers
    StandardConfig(): 1,
    AttnResConfig(n_blocks=4): 5,  # blocks and the embedding; no more than half the sublayers
    AttnResConfig(n_blocks=2): 3,
    AttnResConfig(): 16,
    DenseFormerConfig(sublayers_per_layer=1): 16,
    MuddFormerConfig(ways="residual", sublayers_per_layer=1): 16,
    WindowConfig(n_last=3): 4,  # the window and the embedding
    WindowConfig(n_last=3, remainder=True): 5,
    DeltaConfig(n_blocks=4): 5,
    DeltaConfig(): 16,
    HighwayConfig(): 1,
    ReZeroConfig(): 1,
    LaurelConfig(): 1,
    LaurelConfig(n_previous=2): 3,
    HyperConnectionsConfig(n_streams=4): 4,
    HyperConnectionsConfig(n_streams=2, dynamic=False): 2,
    ManifoldHyperConnectionsConfig(n_streams=4): 4,
    ManifoldHyperConnectionsConfig(n_streams=2, constraint="permutation"): 2,
    ManifoldHyperConnectionsConfig(n_streams=4, constraint="identity"): 4,
}


@pytest.mark.parametrize(("config", "rank"), RANKS.items(), ids=map(format_residual, RANKS))
def test_ranks_are_those_of_theory(config, rank):
    residual = random_residual(config, DIM, 32).double()
    _, outputs = run_alone(residual, torch.randn(1, DIM, dtype=torch.float64))
    assert summary(mixing_matrix(residual, outputs)).rank == rank


def test_summary_of_a_matrix_done_by_hand():
    mixing_RL = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.75, 0.25, -1]])
    found = summary(mixing_RL)
    assert found.row_sums == [1, 1, 0]
    assert found.entropy[:2] == pytest.approx([0, 0.6931472])
    assert found.reach == pytest.approx([0, 0.5, 0.875])
    assert (found.sink, found.sink_share) == (0, pytest.approx((0.5 + 0.375) / 2))


def test_rank_of_matrices_done_by_hand():
    assert off_diagonal_rank(torch.ones(5, 5).tril()) == 1
    assert off_diagonal_rank(torch.eye(4)) == 1
    two = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 2, 1, 0], [1, 3, 5, 1]])
    assert off_diagonal_rank(two) == 2


def test_two_parts_are_added_without_rounding():
    """In bfloat16 their sum would be 1: the matrix is that of both."""
    residual = random_residual(AttnResConfig(), DIM, 2)
    part = torch.full((1, DIM), 2**-9, dtype=torch.bfloat16)
    one = torch.cat([torch.ones(1, DIM - 1), torch.zeros(1, 1)], dim=-1).bfloat16()
    parted = mixing_matrix(residual, [one, Parts(one, part), one])
    whole = mixing_matrix(residual, [one, one.double() + part.double(), one])
    assert torch.equal(parted, whole)


def test_another_number_of_outputs_is_refused():
    residual = StandardConfig().build(DIM, 2)
    with pytest.raises(ValueError, match=r"3 outputs, the embedding first, were expected, got 2"):
        mixing_matrix(residual, [torch.ones(1, DIM)] * 2)
