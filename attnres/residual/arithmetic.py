"""Arithmetic of the methods in plain PyTorch: in float32 at least, one cast at the end."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from attnres.ops.precision import without_autocast


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype of the arithmetic: float32, or float64 where it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_normed(x_D: Tensor, eps: float) -> Tensor:
    """x_D over its root mean square, without a gain, in the dtype of the arithmetic."""
    x_D = wide(x_D)
    return x_D * torch.rsqrt(x_D.square().mean(-1, keepdim=True) + eps)


def project(x_D: Tensor, weight_DN: Tensor) -> Tensor:
    """x_D @ weight_DN in the dtype of the arithmetic, whatever autocast says."""
    x_D = wide(x_D)
    with without_autocast(x_D.device):
        return x_D @ weight_DN.to(x_D.dtype)


def weighted(equation: str, weights: Tensor, x: Tensor) -> Tensor:
    """einsum of the weights of a token and vectors, whatever autocast says; in the dtype of x."""
    with without_autocast(x.device):
        return torch.einsum(equation, weights.to(wide(x).dtype), wide(x)).to(x.dtype)


def weighted_sum(weights: Iterable[Tensor], vectors: Iterable[Tensor]) -> Tensor:
    """sum_i w_i x_i, BTD, in float32 at least; one vector at a time, so that no stack is saved.

    A weight is one number, one a token ([..., 1]) or one a channel ([D] or BTD).
    """
    total_BTD = None
    for weight, vector_BTD in zip(weights, vectors, strict=True):
        weight = wide(weight)
        term_BTD = (weight if weight.dim() else weight.unsqueeze(0)) * vector_BTD
        total_BTD = term_BTD if total_BTD is None else total_BTD + term_BTD
    assert total_BTD is not None
    return total_BTD


def gain_of_width(gain_D: Tensor, width: int, coordinate_gain: Tensor | float = 1) -> Tensor:
    """A gain of channels that leaves coordinates to `coordinate_gain`, where they ride along."""
    n = width - gain_D.shape[-1]
    if n == 0:
        return gain_D
    if isinstance(coordinate_gain, Tensor):
        return torch.cat([gain_D, coordinate_gain.expand(n)])
    return F.pad(gain_D, (0, n), value=float(coordinate_gain))
