"""Positions of a sequence over the ranks of a group, and back; differentiable.

Rank r of n holds positions r * ceil(T / n) and on, so the last ranks may hold fewer, or none. T is
the axis before the last. A tensor is *whole* where every rank has the same one, and so is its
gradient then: that of one loss, not of one loss a rank.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

Group = dist.ProcessGroup
Collective = Callable[..., Tensor]  # of a tensor, and its group


class Share(NamedTuple):
    """The positions of one rank."""

    start: int
    length: int
    padded: int  # of every rank, so that messages have one size


def share(n_tokens: int, group: Group) -> Share:
    """The positions that this rank holds of `n_tokens`."""
    padded = -(-n_tokens // group.size())
    start = min(group.rank() * padded, n_tokens)
    return Share(start, min(padded, n_tokens - start), padded)


def split(whole_BTD: Tensor, group: Group) -> Tensor:
    """The positions of this rank, in memory of their own; the gradient is gathered."""
    gathered = partial(_all_gather, n_tokens=whole_BTD.shape[-2])
    return _Pair.apply(whole_BTD, group, _narrow, gathered)


def gather(own_BTD: Tensor, n_tokens: int, group: Group) -> Tensor:
    """All positions, whole; this rank's part of the gradient comes back."""
    return _Pair.apply(own_BTD, group, partial(_all_gather, n_tokens=n_tokens), _narrow)


def reduce_scatter(summand_BTD: Tensor, group: Group) -> Tensor:
    """This rank's positions of the sum over ranks; the gradient is gathered."""
    gathered = partial(_all_gather, n_tokens=summand_BTD.shape[-2])
    return _Pair.apply(summand_BTD, group, _reduce_scatter, gathered)


def reduce(summand: Tensor, group: Group) -> Tensor:
    """The sum over ranks, whole; the gradient comes back as it is."""
    return _Pair.apply(summand, group, total, _as_it_is)


def spread(whole: Tensor, group: Group) -> Tensor:
    """The same tensor, where each rank uses it for a part of the work: gradients are summed."""
    return _Pair.apply(whole, group, _as_it_is, total)


def total(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, not differentiable."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def _narrow(whole_BTD: Tensor, group: Group) -> Tensor:
    start, length, _ = share(whole_BTD.shape[-2], group)
    own_BTD = whole_BTD.narrow(-2, start, length)
    return own_BTD.clone(memory_format=torch.contiguous_format)  # a view would hold the whole


def _all_gather(own_BTD: Tensor, group: Group, n_tokens: int) -> Tensor:
    n_each = share(n_tokens, group).padded
    own_TBD = _padded(own_BTD.movedim(-2, 0), n_each)
    all_TBD = own_TBD.new_empty(group.size() * n_each, *own_TBD.shape[1:])
    dist.all_gather_single(all_TBD, own_TBD, group=group)
    return all_TBD[:n_tokens].movedim(0, -2).contiguous()


def _reduce_scatter(summand_BTD: Tensor, group: Group) -> Tensor:
    _, length, n_each = share(summand_BTD.shape[-2], group)
    summand_TBD = _padded(summand_BTD.movedim(-2, 0), group.size() * n_each)
    own_TBD = summand_TBD.new_empty(n_each, *summand_TBD.shape[1:])
    dist.reduce_scatter_single(own_TBD, summand_TBD, group=group)
    return own_TBD[:length].movedim(0, -2).contiguous()


def _padded(x_TBD: Tensor, n_tokens: int) -> Tensor:
    n_missing = n_tokens - x_TBD.shape[0]
    padding = (0, 0) * (x_TBD.dim() - 1) + (0, n_missing)
    return (F.pad(x_TBD, padding) if n_missing else x_TBD).contiguous()


def _as_it_is(x: Tensor, group: Group) -> Tensor:
    return x.view_as(x)  # autograd takes no input for an output


class _Pair(torch.autograd.Function):
    """One collective forward, another for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, there: Collective, back: Collective) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(x, group=group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(gradients[0], group=ctx.group), None, None, None
