"""Window attention over depth by hand, and against Full AttnRes."""

from typing import Any

import pytest
import torch
from depth_methods import random_residual, run_alone
from torch import Tensor

from attnres.ops.reference import depth_attention
from attnres.residual import AttnResConfig, Window, WindowConfig

DIM, N_SUBLAYERS = 5, 7


def by_hand(residual: Window, outputs: list[Tensor], depth: int) -> Tensor:
    embed, written = outputs[0], outputs[1 : depth + 1]
    if depth == 0:
        return embed
    fallen, seen = written[: -residual.n_last], written[-residual.n_last :]
    rest = [torch.stack(fallen).sum(0)] if fallen and residual.remainder else []
    reader: Any = residual.readers[depth]
    return depth_attention(reader.query, [embed, *rest, *seen], reader.key_weight, reader.eps)


@pytest.mark.parametrize("n_last", [1, 2, 6, 7, 100])
@pytest.mark.parametrize("remainder", [False, True])
def test_reads_are_those_done_by_hand(n_last, remainder):
    config = WindowConfig(n_last=n_last, remainder=remainder)
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    assert isinstance(residual, Window)
    reads, outputs = run_alone(residual, torch.randn(2, 3, DIM, dtype=torch.float64))
    for depth, read in enumerate(reads):
        torch.testing.assert_close(read, by_hand(residual, outputs, depth), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("remainder", [False, True])
def test_a_window_of_all_outputs_is_full_to_the_bit(remainder):
    found = []
    for config in (AttnResConfig(), WindowConfig(n_last=N_SUBLAYERS, remainder=remainder)):
        residual = random_residual(config, DIM, N_SUBLAYERS)
        embed = torch.randn(2, 3, DIM, generator=torch.Generator().manual_seed(2)).requires_grad_()
        reads, _ = run_alone(residual, embed)
        parameters = dict(residual.named_parameters())
        gradients = torch.autograd.grad(reads[-2].sum(), [embed, *parameters.values()],
                                        allow_unused=True)  # fmt: skip
        found.append((list(parameters), reads, gradients))
    (names, reads, gradients), (names_of_full, reads_of_full, gradients_of_full) = found
    assert names == names_of_full
    assert all(map(torch.equal, reads, reads_of_full))
    for mine, theirs in zip(gradients, gradients_of_full, strict=True):
        assert (mine is theirs is None) or torch.equal(mine, theirs)


@pytest.mark.parametrize("remainder", [False, True])
def test_the_state_does_not_grow_with_depth(remainder):
    residual = WindowConfig(n_last=3, remainder=remainder).build(DIM, 40)
    state = residual.start(torch.randn(2, DIM))
    for depth in range(40):
        state = residual.write(state, depth, torch.randn(2, DIM))
        assert len(state.sources) == residual.n_sources(depth + 1)
    assert len(state.sources) == 4 + remainder
    assert torch.allclose(residual.weights(state, 40).sum(0), torch.ones(2))


def test_only_what_is_lost_makes_another_start():
    assert WindowConfig(n_last=7).build(DIM, 7).starts_as == "multiple"
    assert WindowConfig(n_last=6).build(DIM, 7).starts_as == "other"
    assert WindowConfig(n_last=6, remainder=True).build(DIM, 7).starts_as == "multiple"


def test_every_vector_that_moves_is_counted():
    plain = WindowConfig(n_last=2).build(DIM, 6)
    assert [plain.traffic(depth) for depth in range(4)] == [(1, 0), (2, 1), (3, 1), (3, 1)]
    kept = WindowConfig(n_last=2, remainder=True).build(DIM, 6)
    assert [kept.traffic(depth) for depth in (2, 3, 4)] == [(3, 1), (6, 2), (6, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_last": 0}, "n_last must be a positive integer, got 0"),
        ({"remainder": 1}, "remainder must be True or False, got 1"),
        ({"eps": -1.0}, "eps must be finite"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        WindowConfig(**settings)


def test_windows_out_of_which_nothing_falls_are_one_model():
    whole = {"n_last": N_SUBLAYERS, "remainder": False, "eps": 1e-6}
    for n_last in (N_SUBLAYERS, N_SUBLAYERS + 1):
        for remainder in (False, True):
            config = WindowConfig(n_last=n_last, remainder=remainder)
            assert config.describe(N_SUBLAYERS) == whole
    fewer = WindowConfig(n_last=N_SUBLAYERS - 1, remainder=True)
    assert fewer.describe(N_SUBLAYERS)["remainder"] is True


def test_a_state_out_of_step_is_refused():
    residual = WindowConfig(n_last=1).build(DIM, 4)
    with pytest.raises(ValueError, match="1 sources, at depth 2 there are 2"):
        residual.read(residual.start(torch.ones(DIM)), 2)
