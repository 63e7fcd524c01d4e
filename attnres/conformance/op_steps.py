"""Depth attention cut into the steps that a mistake can be in; each wrong op replaces steps.

    sources -> keys -> logits -> weights -> values -> mix

The right steps are the formula of `attnres.ops.reference` once more, so that one wrong step is one
small function, and two mistakes in different steps make a third op.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnres.conformance.cases import EPS


class Read(NamedTuple):
    """What the steps of one read see; tensors have the dtype of the arithmetic."""

    query_D: Tensor
    source_SD: Tensor
    key_weight_D: Tensor
    eps: float
    dtype: torch.dtype  # of the sources as they were given


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _all(source_SD: Tensor) -> Tensor:
    return source_SD


def unit(read: Read) -> Tensor:
    """Sources over their root mean square."""
    return F.rms_norm(read.source_SD, read.query_D.shape, None, read.eps)


def _keys(read: Read) -> Tensor:
    return unit(read) * read.key_weight_D


def _logits(read: Read, key_SD: Tensor) -> Tensor:
    return (key_SD * read.query_D).sum(-1)


def _weights(logits_S: Tensor) -> Tensor:
    return logits_S.softmax(0)


def _values(read: Read, key_SD: Tensor) -> Tensor:
    return read.source_SD


def _mix(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return (alpha_S.unsqueeze(-1) * value_SD).sum(0)


@dataclass(frozen=True)
class Op:
    """Depth attention, f(query, sources, key_weight, eps); without changes the right one."""

    arithmetic: Callable[[torch.dtype], torch.dtype] = _wide
    sources: Callable[[Tensor], Tensor] = _all
    keys: Callable[[Read], Tensor] = _keys
    logits: Callable[[Read, Tensor], Tensor] = _logits
    weights: Callable[[Tensor], Tensor] = _weights
    values: Callable[[Read, Tensor], Tensor] = _values
    mix: Callable[[Tensor, Tensor], Tensor] = _mix

    def __call__(
        self, query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
    ) -> Tensor:
        given = sources[0].dtype
        wide = self.arithmetic(given)
        source_SD = self.sources(torch.stack(list(sources)).to(wide))
        read = Read(query_D.to(wide), source_SD, key_weight_D.to(wide), eps, given)
        key_SD = self.keys(read)
        alpha_S = self.weights(self.logits(read, key_SD))
        return self.mix(alpha_S, self.values(read, key_SD)).to(given)


RIGHT = Op()


def narrow(dtype: torch.dtype) -> torch.dtype:
    return dtype


def first_32(source_SD: Tensor) -> Tensor:
    return source_SD[:32]


def raw_keys(read: Read) -> Tensor:
    return read.source_SD * read.key_weight_D


def l2_keys(read: Read) -> Tensor:
    square = read.source_SD.square().sum(-1, keepdim=True)
    return read.source_SD * (square + read.eps).rsqrt() * read.key_weight_D


def layer_norm_keys(read: Read) -> Tensor:
    return F.layer_norm(read.source_SD, read.query_D.shape, read.key_weight_D, None, read.eps)


def unweighted_keys(read: Read) -> Tensor:
    return unit(read)


def one_plus_weight(read: Read) -> Tensor:
    return unit(read) * (1 + read.key_weight_D)


def eps_outside_root(read: Read) -> Tensor:
    size = read.source_SD.square().mean(-1, keepdim=True).sqrt()
    return read.source_SD / (size + read.eps) * read.key_weight_D


def own_eps(read: Read) -> Tensor:
    return _keys(read._replace(eps=EPS))


def padded_mean(read: Read) -> Tensor:
    dim = read.query_D.shape[-1]
    padded = 1 << (dim - 1).bit_length()
    square = read.source_SD.square().sum(-1, keepdim=True) / padded
    return read.source_SD * (square + read.eps).rsqrt() * read.key_weight_D


def detached_keys(read: Read) -> Tensor:
    return _keys(read._replace(source_SD=read.source_SD.detach()))


def cast_before_weight(read: Read) -> Tensor:
    return unit(read).to(read.dtype).to(read.source_SD.dtype) * read.key_weight_D


def scaled_logits(read: Read, key_SD: Tensor) -> Tensor:
    return _logits(read, key_SD) * read.query_D.shape[-1] ** -0.5


def zero_logits(read: Read, key_SD: Tensor) -> Tensor:
    return 0 * _logits(read, key_SD)


def recent_logits(read: Read, key_SD: Tensor) -> Tensor:
    logits_S = _logits(read, key_SD)
    return torch.cat([logits_S[:-1], logits_S[-1:] + 3])


def overflowing(logits_S: Tensor) -> Tensor:
    e_S = logits_S.exp()
    return e_S / e_S.sum(0)


def sigmoids(logits_S: Tensor) -> Tensor:
    return logits_S.sigmoid()


def over_tokens(logits_S: Tensor) -> Tensor:
    return logits_S.softmax(-1)


def without_mean_slope(logits_S: Tensor) -> Tensor:
    return (logits_S - logits_S.detach().logsumexp(0)).exp()


def detached_weights(logits_S: Tensor) -> Tensor:
    return logits_S.detach().softmax(0)


def unit_values(read: Read, key_SD: Tensor) -> Tensor:
    return unit(read)


def key_values(read: Read, key_SD: Tensor) -> Tensor:
    return key_SD


def detached_values(read: Read, key_SD: Tensor) -> Tensor:
    return read.source_SD.detach()


def summed(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return len(value_SD) * _mix(alpha_S, value_SD)


def with_residual(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return _mix(alpha_S, value_SD) + value_SD[-1]


def last_value(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return value_SD[-1]


def plain_sum(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return value_SD.sum(0)


def without_tail(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    n_copied = value_SD.shape[-1] // 8 * 8
    copied = torch.arange(value_SD.shape[-1], device=value_SD.device) < n_copied
    return _mix(alpha_S, value_SD) * copied
