"""Depth attention in plain PyTorch: the definition that every kernel is held to.

    alpha_S = softmax_S(query_D . (rmsnorm(source_SD) * key_weight_D))
    mix_D   = sum_S alpha_S * source_SD                      arXiv:2603.15031, eqs. 2-4

S sources (the embedding, then blocks), D model width; `...` is any leading shape, such as BT.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attnres.ops.precision import compute_dtype, result_dtype


def depth_attention(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    source_SD = _stack(sources)
    alpha_S = _weights(query_D, source_SD, key_weight_D, eps)
    mix_D = torch.einsum("s...,s...d->...d", alpha_S, source_SD)
    return mix_D.to(result_dtype(sources))


def depth_weights(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    return _weights(query_D, _stack(sources), key_weight_D, eps)


def _weights(query_D: Tensor, source_SD: Tensor, key_weight_D: Tensor, eps: float) -> Tensor:
    key_SD = F.rms_norm(source_SD, query_D.shape, key_weight_D.to(source_SD.dtype), eps)
    logits_S = torch.einsum("d,s...d->s...", query_D.to(source_SD.dtype), key_SD)
    return logits_S.softmax(dim=0)


def _stack(sources: Sequence[Tensor]) -> Tensor:
    dtype = compute_dtype(sources)
    return torch.stack([source.to(dtype) for source in sources])
