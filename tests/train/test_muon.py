from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from torch import nn

from attnres.train import muon
from attnres.train.muon import Muon, orthogonal

SETTINGS: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}


def steps(weight, build, dtype=torch.float32, n_steps=3):
    """The weight after some steps with gradients of very different size."""
    generator = torch.Generator().manual_seed(1)
    param = nn.Parameter(weight.to(dtype, copy=True))
    optimizer = build([param])
    for i in range(n_steps):
        grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        param.grad = (grad * 10.0 ** (-2 * i)).to(dtype)
        optimizer.step()
    return param.detach()


def ours(params, **settings):
    return Muon(params, **SETTINGS, **settings)


def torchs(params):
    return torch.optim.Muon(params, **SETTINGS, adjust_lr_fn="match_rms_adamw")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (1, 9), (33, 64), (128, 128)])
def test_in_bfloat16_a_matrix_moves_as_by_torchs_muon_bit_for_bit(shape):
    weight = random(*shape)
    moved = steps(weight, lambda params: ours(params, dtype=torch.bfloat16))
    assert torch.equal(moved, steps(weight, torchs))


@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 2, 16, 33), (4, 1, 6)])
def test_every_matrix_of_a_stack_moves_as_if_alone(shape):
    weight = random(*shape)

    def each_alone(params):
        (stack,) = params
        matrices = [nn.Parameter(matrix) for matrix in stack.detach().flatten(0, -3)]
        return EachAlone(stack, matrices)

    exact = steps(weight, each_alone, torch.float64)
    plain = steps(weight, each_alone)
    assert_as_good_as(steps(weight, ours), plain, exact, "stack")


class EachAlone:
    """Muon over the matrices of a stack, which share its memory, one parameter each."""

    def __init__(self, stack, matrices):
        self.stack, self.matrices, self.muon = stack, matrices, ours(matrices)

    def step(self):
        for matrix, grad in zip(self.matrices, self.stack.grad.flatten(0, -3), strict=True):
            matrix.grad = grad
        self.muon.step()


def moved_together(weights, dtype, n_steps=3):
    """The weights after some steps of one optimizer."""
    params = [nn.Parameter(weight.to(dtype, copy=True)) for weight in weights]
    optimizer = ours(params, n_parts=2)
    for i in range(n_steps):
        for weight, param in zip(weights, params, strict=True):
            param.grad = (weight.flip(0) * 10.0 ** (-2 * i)).to(dtype)
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.parametrize("stacked", [90, muon.STACKED])
def test_small_matrices_of_one_shape_move_as_if_alone(monkeypatch, stacked):
    weights = [random(8, 6, 5)[i] for i in range(5)] + [
        random(3, 6, 5),
        random(3, 6, 5).neg(),
        random(4, 9),
    ]
    monkeypatch.setattr(muon, "SMALL", 0)
    plain, exact = (moved_together(weights, dtype) for dtype in (torch.float32, torch.float64))
    monkeypatch.undo()
    monkeypatch.setattr(muon, "STACKED", stacked)
    together = moved_together(weights, torch.float32)
    for moved in zip(together, plain, exact, strict=True):
        assert_as_good_as(*moved, "weight")


def test_only_small_matrices_of_one_kind_go_together(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        muon, "orthogonal", lambda m, dtype: sizes.append(tuple(m.shape)) or orthogonal(m, dtype)
    )
    monkeypatch.setattr(muon, "SMALL", 30)
    monkeypatch.setattr(muon, "STACKED", 72)
    shapes = [(5, 6), (4, 6), (5, 6), (6, 6), (5, 6), (6, 6)]
    params = [nn.Parameter(random(*shape)) for shape in shapes]
    params.append(nn.Parameter(random(5, 6).float()))
    for param in params:
        param.grad = param.detach().clone()
    params[1].grad = None
    Muon(params).step()
    assert sorted(sizes) == [
        (1, 1, 5, 6), (1, 1, 5, 6), (1, 1, 6, 6), (1, 1, 6, 6), (2, 1, 5, 6),
    ]  # fmt: skip


def test_a_matrix_without_entries_is_stepped_over():
    empty, full = nn.Parameter(torch.ones(0, 5)), nn.Parameter(torch.ones(2, 5))
    empty.grad, full.grad = torch.ones(0, 5), torch.ones(2, 5)
    Muon([empty, full], lr=0.5).step()
    assert empty.shape == (0, 5)
    assert not torch.equal(full, torch.ones(2, 5))


def test_parts_of_rows_are_matrices_of_their_own():
    weight = random(3, 6, 5)
    parts = steps(weight, lambda params: ours(params, n_parts=2), torch.float64)
    stacked = steps(weight.unflatten(1, (2, 3)), ours, torch.float64)
    torch.testing.assert_close(parts, stacked.flatten(1, 2), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (2, 16, 16)])
def test_the_update_is_nearly_the_orthogonal_factor(shape):
    matrix = random(*shape)
    update = orthogonal(matrix, torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    along = u.mT @ update @ vh.mT  # diagonal, of the singular values of the update
    torch.testing.assert_close(along, torch.diag_embed(along.diagonal(dim1=-2, dim2=-1)))
    assert ((along.diagonal(dim1=-2, dim2=-1) - 0.95).abs() < 0.3).all()


def test_the_iteration_is_as_wide_as_the_parameter_or_float32(monkeypatch):
    iterated_in = []
    monkeypatch.setattr(
        muon, "orthogonal", lambda m, dtype: iterated_in.append(dtype) or orthogonal(m, dtype)
    )
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        steps(torch.eye(2), ours, dtype, n_steps=1)
    assert iterated_in == [torch.float32, torch.float32, torch.float64]


def test_a_gradient_of_zero_moves_nothing_but_the_decay():
    weight = nn.Parameter(torch.ones(3, 4))
    weight.grad = torch.zeros(3, 4)
    Muon([weight], lr=0.5, weight_decay=0.2).step()
    assert torch.equal(weight, torch.full((3, 4), 0.9))


def test_what_has_no_gradient_stays_and_a_closure_gives_the_loss():
    weight = nn.Parameter(torch.ones(3, 4))
    assert Muon([weight]).step(lambda: 2.5) == 2.5
    assert torch.equal(weight, torch.ones(3, 4))


@pytest.mark.parametrize(
    ("shape", "n_parts", "words"),
    [
        ((4,), 1, r"got a parameter of shape \(4,\)"),
        ((2, 5, 4), 2, r"5 rows are not 2 equal parts: shape \(2, 5, 4\)"),
        ((4, 4), 0, "4 rows are not 0 equal parts"),
    ],
)
def test_what_is_no_matrix_is_refused(shape, n_parts, words):
    with pytest.raises(ValueError, match=words):
        Muon([nn.Parameter(torch.ones(shape))], n_parts=n_parts)
