"""Depth attention in plain PyTorch, source by source, with its backward written out.

The sources are never stacked and no normalised key is kept. For each query, with
u = query * key_weight, r_i = 1 / rms(v_i), x_i = r_i v_i, logit_i = x_i . u, e = dL/dmix and
c = dL/dlse:

    s_i  = alpha_i (v_i . e - mix . e + c)                                 = dL/dlogit_i
    dv_i = alpha_i e + s_i r_i (u - x_i logit_i / D), summed over queries
    du   = sum over tokens and sources of s_i x_i

A mix that is given is one more source, whose logit is its lse: dmix = alpha e, dlse = s.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnres.ops.kernel import Given, OtherGradients, ReadResult, SourceGradients, Upstream


def forward(
    folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
) -> ReadResult:
    rstd_S, logits_QS = statistics(folded_QD, sources, eps)
    scores_QS = _with_given(logits_QS, given)
    alpha_QS = scores_QS.softmax(dim=1)
    mixes = [
        mix(alpha_S, _values(sources, given, q)).to(sources[0].dtype)
        for q, alpha_S in enumerate(alpha_QS)
    ]
    mix_QD = mixes[0].unsqueeze_(0) if len(mixes) == 1 else torch.stack(mixes)
    return ReadResult(mix_QD, scores_QS.logsumexp(dim=1), (rstd_S, logits_QS, alpha_QS))


def backward(
    upstream: Upstream,
    folded_QD: Tensor,
    sources: Sequence[Tensor],
    given: Given | None,
    saved: Sequence[Tensor],
    into: SourceGradients,
    needs_folded: bool,
) -> OtherGradients:
    rstd_S, logits_QS, alpha_QS = saved
    grads = [None if e is None else e.to(folded_QD.dtype) for e in upstream.mixes]
    slope_QS = slope(alpha_QS, sources, given, grads, upstream.lse_Q)
    mix_QD = lse_Q = None
    if given is not None:
        mix_QD, lse_Q = _given_gradient(given, alpha_QS[:, 0], grads), slope_QS[:, 0]
        alpha_QS, slope_QS = alpha_QS[:, 1:], slope_QS[:, 1:]
    key_slope_QS = slope_QS * rstd_S
    radial_S = -(key_slope_QS * logits_QS).sum(dim=0) * rstd_S / folded_QD.shape[-1]
    fill(into, sources, radial_S, terms(folded_QD, key_slope_QS, grads, alpha_QS))
    folded_gradient_QD = folded_gradient(key_slope_QS, sources) if needs_folded else None
    return OtherGradients(folded_gradient_QD, mix_QD, lse_Q)


Term = tuple[Tensor, Tensor]  # a vector, [..., D] or [D], and its weight in each source, [S, ...]


def terms(
    folded_QD: Tensor, key_slope_QS: Tensor, grads: Sequence[Tensor | None], weight_QS: Tensor
) -> list[Term]:
    """Of the gradient of a source for each query: one of its key and one of its value."""
    found: list[Term] = []
    pairs = zip(folded_QD, key_slope_QS, grads, weight_QS, strict=True)
    for folded_D, key_slope_S, e_D, weight_S in pairs:
        found.append((folded_D, key_slope_S))
        if e_D is not None:
            found.append((e_D, weight_S))
    return found


def fill(
    into: SourceGradients, sources: Sequence[Tensor], radial_S: Tensor, terms: Sequence[Term]
) -> None:
    """Put dv_i = radial_i v_i + the weighted sum of the terms into each buffer."""
    for i, buffer_D in enumerate(into.buffers):
        if buffer_D is None:
            continue
        gradient_D = radial_S[i].unsqueeze(-1) * sources[i].to(radial_S.dtype)
        for vector_D, weight_S in terms:
            gradient_D.addcmul_(weight_S[i].unsqueeze(-1), vector_D)
        buffer_D.add_(gradient_D) if into.accumulate[i] else buffer_D.copy_(gradient_D)


def statistics(folded_QD: Tensor, sources: Sequence[Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """1 / rms of each source, [S, ...], and its logit for each query, [Q, S, ...]."""
    dtype, dim = folded_QD.dtype, folded_QD.shape[-1]
    wide = [_side_by_side(v.to(dtype)) for v in sources]
    norm_S = torch.stack([torch.linalg.vector_norm(v, dim=-1) for v in wide])
    rstd_S = torch.rsqrt(norm_S.square() / dim + eps)
    dots_QS = torch.stack([torch.stack([v @ folded_D for v in wide]) for folded_D in folded_QD])
    return rstd_S, rstd_S * dots_QS


def _side_by_side(x: Tensor) -> Tensor:
    """A copy of what is expanded along the width: torch adds that up number by number."""
    return x.contiguous() if x.stride(-1) == 0 else x


def _with_given(logits_QS: Tensor, given: Given | None) -> Tensor:
    return logits_QS if given is None else torch.cat([given.lse_Q.unsqueeze(1), logits_QS], dim=1)


def _values(sources: Sequence[Tensor], given: Given | None, q: int) -> Sequence[Tensor]:
    return sources if given is None else [given.mix_QD[q], *sources]


def mix(alpha_S: Tensor, values: Sequence[Tensor]) -> Tensor:
    """sum_i alpha_i v_i; the sum starts at the first source, so one source comes back as it is."""
    mix_D = alpha_S[0].unsqueeze(-1) * values[0]
    for alpha, value in zip(alpha_S[1:], values[1:], strict=True):
        mix_D.addcmul_(alpha.unsqueeze(-1), value.to(mix_D.dtype))
    return mix_D


def slope(
    alpha_QS: Tensor,
    sources: Sequence[Tensor],
    given: Given | None,
    grads: Sequence[Tensor | None],
    grad_lse_Q: Tensor | None,
) -> Tensor:
    """dL/dlogit of each source, [Q, S, ...]: the softmax's backward."""
    slopes = []
    for q, (alpha_S, e_D) in enumerate(zip(alpha_QS, grads, strict=True)):
        slope_S = torch.zeros_like(alpha_S)
        if e_D is not None:
            values = [_side_by_side(v.to(e_D.dtype)) for v in _values(sources, given, q)]
            inner_S = torch.stack([torch.linalg.vecdot(v, e_D) for v in values])
            slope_S = alpha_S * (inner_S - (alpha_S * inner_S).sum(dim=0))
        slopes.append(slope_S if grad_lse_Q is None else slope_S + alpha_S * grad_lse_Q[q])
    return torch.stack(slopes)


def _given_gradient(given: Given, alpha_Q: Tensor, grads: Sequence[Tensor | None]) -> Tensor:
    """dL/d(given mix) = alpha e."""
    return torch.stack(
        [
            torch.zeros_like(mix_D) if e_D is None else (alpha.unsqueeze(-1) * e_D).to(mix_D.dtype)
            for mix_D, alpha, e_D in zip(given.mix_QD, alpha_Q, grads, strict=True)
        ]
    )


def folded_gradient(key_slope_QS: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """du: the sum of s_i x_i over tokens and sources."""
    n_queries, dim = key_slope_QS.shape[0], sources[0].shape[-1]
    total_QD = key_slope_QS.new_zeros(n_queries, dim)
    for key_slope_Q, source in zip(key_slope_QS.unbind(dim=1), sources, strict=True):
        rows_RD = source.reshape(-1, dim).to(total_QD.dtype)
        total_QD += key_slope_Q.reshape(n_queries, -1) @ rows_RD
    return total_QD
