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
    alpha_S = _logits(query_D, source_SD, key_weight_D, eps).softmax(dim=0)
    return _mix(alpha_S, source_SD).to(result_dtype(sources))


def depth_weights(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    return _logits(query_D, _stack(sources), key_weight_D, eps).softmax(dim=0)


def depth_attention_queries(
    queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Phase 1: the mix of every query, and the logarithm of the sum under its softmax."""
    source_SD = _stack(sources)
    logits_QS = torch.stack(
        [
            _logits(query_D, source_SD, key_weight_D, eps)
            for query_D, key_weight_D in zip(queries_QD, key_weights_QD, strict=True)
        ]
    )
    mix_QD = torch.stack([_mix(logits_S.softmax(dim=0), source_SD) for logits_S in logits_QS])
    return mix_QD.to(result_dtype(sources)), logits_QS.logsumexp(dim=1)


def split_queries(
    queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Phase 1 with the mix and the lse of each query apart."""
    mix_QD, lse_Q = depth_attention_queries(queries_QD, sources, key_weights_QD, eps)
    return mix_QD.unbind(0), lse_Q.unbind(0)


def merge(
    mix_D: Tensor,
    lse: Tensor,
    partials: Sequence[Tensor],
    query_D: Tensor,
    key_weight_D: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Phase 2: a mix counts as one more source, whose logit is its `lse`."""
    value_SD = _stack([mix_D, *partials])
    logits_S = _logits(query_D, value_SD[1:], key_weight_D, eps)
    logits_S = torch.cat([lse.to(logits_S.dtype).unsqueeze(0), logits_S])
    merged_D = _mix(logits_S.softmax(dim=0), value_SD)
    return merged_D.to(result_dtype([mix_D, *partials])), logits_S.logsumexp(dim=0)


def depth_deviation(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    """S * mix - sum_S source_S in the dtype of the arithmetic: exactly 0 for equal logits."""
    source_SD = _stack(sources)
    return _mix(excess(_logits(query_D, source_SD, key_weight_D, eps), 0), source_SD)


def centered_attention(
    query_D: Tensor, sources: Sequence[Tensor], stream_D: Tensor, key_weight_D: Tensor, eps: float
) -> Tensor:
    return around(stream_D, depth_deviation(query_D, sources, key_weight_D, eps))


def around(stream_D: Tensor, deviation_D: Tensor) -> Tensor:
    return (stream_D.to(deviation_D.dtype) + deviation_D).to(stream_D.dtype)


def excess(logits_S: Tensor, dim: int) -> Tensor:
    """S * softmax - 1 over the sources along `dim`, without the rounding of the division."""
    e_S = torch.exp(logits_S - logits_S.amax(dim, keepdim=True))
    total = e_S.sum(dim, keepdim=True)
    return (e_S * logits_S.shape[dim] - total) / total


def _logits(query_D: Tensor, source_SD: Tensor, key_weight_D: Tensor, eps: float) -> Tensor:
    key_SD = F.rms_norm(source_SD, query_D.shape, key_weight_D.to(source_SD.dtype), eps)
    return torch.einsum("d,s...d->s...", query_D.to(source_SD.dtype), key_SD)


def _mix(alpha_S: Tensor, source_SD: Tensor) -> Tensor:
    return torch.einsum("s...,s...d->...d", alpha_S, source_SD)


def _stack(sources: Sequence[Tensor]) -> Tensor:
    dtype = compute_dtype(sources)
    return torch.stack([source.to(dtype) for source in sources])
