"""Depth attention in plain PyTorch, source by source, with its backward written out.

The sources are never stacked and no normalised key is kept. With u = query * key_weight,
r_i = 1 / rms(v_i), x_i = r_i v_i, logit_i = x_i . u and e = dL/dmix:

    s_i  = alpha_i (v_i . e - sum_j alpha_j v_j . e)                       = dL/dlogit_i
    dv_i = alpha_i e + s_i r_i (u - x_i logit_i / D)
    du   = sum over tokens and sources of s_i x_i;  dquery = key_weight du,  dkey_weight = query du

Saved for the backward: references to the sources and three scalars a token and source.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnres.ops.precision import compute_dtype, result_dtype, without_autocast


class Statistics(NamedTuple):
    """What a read needs to know of each source: one scalar a token."""

    rstd_S: Tensor
    logits_S: Tensor
    alpha_S: Tensor


def depth_attention(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    return _DepthAttention.apply(query_D, key_weight_D, eps, *sources)


def depth_weights(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    return _statistics(_fold(query_D, key_weight_D, sources), sources, eps).alpha_S


class _DepthAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query_D, key_weight_D, eps, *sources):
        stats = _statistics(_fold(query_D, key_weight_D, sources), sources, eps)
        ctx.save_for_backward(query_D, key_weight_D, *stats, *sources)
        return _mix(stats.alpha_S, sources).to(result_dtype(sources))

    @staticmethod
    def backward(ctx, *grad_outputs):
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "the closed form of depth attention has no second derivative (create_graph=True); "
                "impl='reference' has one"
            )
        (grad_D,) = grad_outputs
        query_D, key_weight_D, rstd_S, logits_S, alpha_S, *sources = ctx.saved_tensors
        with without_autocast(grad_D.device):
            folded_D = _fold(query_D, key_weight_D, sources)
            grad_D = grad_D.to(folded_D.dtype)
            slope_S = _slope(alpha_S, sources, grad_D)
            key_slope_S = slope_S * rstd_S
            radial_S = -key_slope_S * rstd_S * logits_S / grad_D.shape[-1]
            grad_sources = [
                _source_gradient(grad_D, folded_D, source, *scalars) if needed else None
                for needed, source, *scalars in zip(
                    ctx.needs_input_grad[3:], sources, alpha_S, key_slope_S, radial_S, strict=True
                )
            ]
            grad_query_D = grad_key_weight_D = None
            if any(ctx.needs_input_grad[:2]):
                grad_folded_D = _folded_gradient(key_slope_S, sources)
                grad_query_D = (key_weight_D * grad_folded_D).to(query_D.dtype)
                grad_key_weight_D = (query_D * grad_folded_D).to(key_weight_D.dtype)
        return grad_query_D, grad_key_weight_D, None, *grad_sources


def _fold(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """u = query * key_weight: only the product acts on the logits."""
    dtype = compute_dtype(sources)
    return query_D.to(dtype) * key_weight_D.to(dtype)


def _statistics(folded_D: Tensor, sources: Sequence[Tensor], eps: float) -> Statistics:
    dtype, dim = folded_D.dtype, folded_D.shape[0]
    norm_S = torch.stack([torch.linalg.vector_norm(v, dim=-1, dtype=dtype) for v in sources])
    rstd_S = torch.rsqrt(norm_S.square() / dim + eps)
    logits_S = rstd_S * torch.stack([v.to(dtype) @ folded_D for v in sources])
    return Statistics(rstd_S, logits_S, logits_S.softmax(dim=0))


def _mix(alpha_S: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """sum_i alpha_i v_i; the sum starts at the first source, so one source comes back as it is."""
    mix_D = alpha_S[0].unsqueeze(-1) * sources[0]
    for alpha, source in zip(alpha_S[1:], sources[1:], strict=True):
        mix_D.addcmul_(alpha.unsqueeze(-1), source.to(mix_D.dtype))
    return mix_D


def _slope(alpha_S: Tensor, sources: Sequence[Tensor], grad_D: Tensor) -> Tensor:
    """dL/dlogit of each source: the softmax's backward."""
    inner_S = torch.stack([torch.linalg.vecdot(v.to(grad_D.dtype), grad_D) for v in sources])
    return alpha_S * (inner_S - (alpha_S * inner_S).sum(dim=0))


def _source_gradient(
    grad_D: Tensor,
    folded_D: Tensor,
    source: Tensor,
    alpha: Tensor,
    key_slope: Tensor,
    radial: Tensor,
) -> Tensor:
    gradient_D = alpha.unsqueeze(-1) * grad_D
    gradient_D.addcmul_(key_slope.unsqueeze(-1), folded_D)
    gradient_D.addcmul_(radial.unsqueeze(-1), source.to(grad_D.dtype))
    return gradient_D.to(source.dtype)


def _folded_gradient(key_slope_S: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """du: the sum of s_i x_i over tokens and sources."""
    total_D = key_slope_S.new_zeros(sources[0].shape[-1])
    for key_slope, source in zip(key_slope_S, sources, strict=True):
        rows_RD = source.reshape(-1, source.shape[-1]).to(total_D.dtype)
        total_D += key_slope.reshape(-1) @ rows_RD
    return total_D
