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


def right_keys(read: Read) -> Tensor:
    return unit(read) * read.key_weight_D


def right_logits(read: Read, key_SD: Tensor) -> Tensor:
    return (key_SD * read.query_D).sum(-1)


def _weights(logits_S: Tensor) -> Tensor:
    return logits_S.softmax(0)


def _values(read: Read, key_SD: Tensor) -> Tensor:
    return read.source_SD


def right_mix(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return (alpha_S.unsqueeze(-1) * value_SD).sum(0)


@dataclass(frozen=True)
class Op:
    """Depth attention, f(query, sources, key_weight, eps); without changes the right one."""

    arithmetic: Callable[[torch.dtype], torch.dtype] = _wide
    sources: Callable[[Tensor], Tensor] = _all
    keys: Callable[[Read], Tensor] = right_keys
    logits: Callable[[Read, Tensor], Tensor] = right_logits
    weights: Callable[[Tensor], Tensor] = _weights
    values: Callable[[Read, Tensor], Tensor] = _values
    mix: Callable[[Tensor, Tensor], Tensor] = right_mix

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
