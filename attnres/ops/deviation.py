"""What attention over depth adds to the plain sum of its sources, as kernels.

    deviation = sum_i c_i v_i,   c_i = S alpha_i - 1 = (S e_i - Z) / Z,   e_i = exp(logit_i - max)

With equal logits every e_i is 1 and Z is S, so each c_i is 0 without rounding, in the forward and
in the backward. With the letters of `closed_form.py`:

    s_i  = S alpha_i (v_i . e - sum_j alpha_j v_j . e)
    dv_i = c_i e + s_i r_i (u - x_i logit_i / D),   du = sum over tokens and sources of s_i x_i
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnres.ops import closed_form
from attnres.ops.kernel import Given, OtherGradients, ReadResult, SourceGradients, Upstream
from attnres.ops.reference import excess


def forward(
    folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
) -> ReadResult:
    """The deviation of each query in the dtype of the arithmetic: it is rounded with its sum."""
    assert given is None
    rstd_S, logits_QS = closed_form.statistics(folded_QD, sources, eps)
    c_QS = excess(logits_QS, 1)
    deviation_QD = torch.stack([closed_form.mix(c_S, sources) for c_S in c_QS])
    return ReadResult(deviation_QD, logits_QS.logsumexp(dim=1), (rstd_S, logits_QS))


def backward(
    upstream: Upstream,
    folded_QD: Tensor,
    sources: Sequence[Tensor],
    given: Given | None,
    saved: Sequence[Tensor],
    into: SourceGradients,
    needs_folded: bool,
) -> OtherGradients:
    rstd_S, logits_QS = saved
    grads = upstream.mixes
    alpha_QS = logits_QS.softmax(dim=1)
    slope_QS = len(sources) * closed_form.slope(alpha_QS, sources, None, grads, None)
    key_slope_QS = slope_QS * rstd_S
    radial_S = -(key_slope_QS * logits_QS).sum(dim=0) * rstd_S / folded_QD.shape[-1]
    c_QS = excess(logits_QS, 1)
    terms = closed_form.terms(folded_QD, key_slope_QS, grads, c_QS)
    closed_form.fill(into, sources, radial_S, terms)
    folded = closed_form.folded_gradient(key_slope_QS, sources) if needs_folded else None
    return OtherGradients(folded, None, None)


class Around:
    """A kernel that adds the deviation to a stream, which stands in the place of what is given.

    `kernel` is one whose forward and backward take `centered=True`. The backward reads no stream,
    whose gradient is that of the mix.
    """

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def forward(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
    ) -> ReadResult:
        return self.kernel.forward(folded_QD, sources, given, eps, centered=True)

    def backward(
        self,
        upstream: Upstream,
        folded_QD: Tensor,
        sources: Sequence[Tensor],
        given: Given | None,
        saved: Sequence[Tensor],
        into: SourceGradients,
        needs_folded: bool,
    ) -> OtherGradients:
        inputs = (upstream, folded_QD, sources, None, saved, into, needs_folded)
        other = self.kernel.backward(*inputs, centered=True)
        (e_D,) = upstream.mixes
        return other if e_D is None else other._replace(mix_QD=e_D.unsqueeze(0))
