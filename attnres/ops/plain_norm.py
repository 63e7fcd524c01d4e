"""Norms that are an RMSNorm and no more: a read can then give its mix normed, in the same call."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres.ops.kernel import PLAIN

_computes: dict[Any, bool] = {}  # whether the forward of a class was found to be `_llama_norm`


class PlainNorm(NamedTuple):
    """What an RMSNorm is made of."""

    weight_D: Tensor
    eps: float


def plain_norm(norm: Any, like_D: Tensor) -> PlainNorm | None:
    """Weight and epsilon of a module that is Llama's RMSNorm, in the dtype of `like_D`; else None.

    What a class computes is found by calling its forward once, beside the formula; another one in
    its place is asked anew. None also where somebody listens to the module or has changed it: then
    it has to be called.
    """
    forward = getattr(type(norm), "forward", None)
    is_plain = _computes.get(forward)
    if is_plain is None:
        is_plain = _computes[forward] = _is_llamas(norm)
    if not is_plain or _is_changed(norm):
        return None
    weight_D, eps = norm._parameters["weight"], norm.variance_epsilon
    if (
        type(weight_D) not in PLAIN
        or type(eps) is not float
        or weight_D.dtype is not like_D.dtype
        or weight_D.dtype is torch.float64  # of which the module makes float32 first
        or weight_D.shape != like_D.shape[-1:]
        or not weight_D.is_cpu
        or not weight_D.is_contiguous()
    ):
        return None
    return PlainNorm(weight_D, eps)


def _is_changed(norm: nn.Module) -> bool:
    return bool(
        norm._forward_hooks
        or norm._forward_pre_hooks
        or norm._buffers
        or norm._modules
        or "forward" in norm.__dict__
        or len(norm._parameters) != 1
    )


def _is_llamas(norm: Any) -> bool:
    """Whether the class of `norm` gives the very bits of the formula, for another weight."""
    if not isinstance(norm, nn.Module) or "variance_epsilon" not in norm.__dict__:
        return False
    generator = torch.Generator().manual_seed(0)
    probe: Any = copy.copy(norm)
    eps = probe.variance_epsilon = 0.25  # that of the module may be 0
    for dtype in (torch.float32, torch.bfloat16):
        weight_D, x_TD = (torch.randn(n, 6, generator=generator).to(dtype) for n in (1, 5))
        probe._parameters = {"weight": nn.Parameter(weight_D[0])}
        x_TD *= eps**0.5  # so that epsilon matters
        try:
            found_TD = type(norm).forward(probe, x_TD)
        except (RuntimeError, TypeError, ValueError, AttributeError):  # it asks for something else
            return False
        if not torch.equal(found_TD, _llama_norm(x_TD, weight_D[0], eps)):
            return False
    return True


def _llama_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    wide_TD = x_TD.float()
    rstd_T1 = torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return weight_D * (wide_TD * rstd_T1).to(x_TD.dtype)
