"""A read without gradients on the short way: in decoding, Python's own time is most of a read."""

import math
import os
from typing import Any

import torch
from torch import Tensor

from attnres.ops.backends import CHOICE, loaded, runs_here
from attnres.ops.cpu import CpuKernel
from attnres.ops.cpu_quick import Asked, Found, QuickReads
from attnres.ops.kernel import PLAIN, is_watched
from attnres.ops.plain_norm import PlainNorm

_chosen: dict[str | None, QuickReads | None] = {}  # by the name of an implementation


def mix(query_D: Any, sources: Any, key_weight_D: Any, eps: Any, impl: str | None) -> Tensor | None:
    """`depth_attention` of plain tensors; None where the long way must be gone.

    That way checks what was given and says what is wrong, so nothing is refused here.
    """
    return _public(query_D, sources, key_weight_D, eps, impl)


def around(
    query_D: Any, sources: Any, stream_D: Any, key_weight_D: Any, eps: Any, impl: str | None
) -> Tensor | None:
    """`centered_attention` in the same way."""
    if type(stream_D) not in PLAIN or stream_D.dim() == 0:
        return None
    return _public(query_D, sources, key_weight_D, eps, impl, stream_D)


def _public(
    query_D: Any,
    sources: Any,
    key_weight_D: Any,
    eps: Any,
    impl: str | None,
    around_D: Tensor | None = None,
) -> Tensor | None:
    quick_reads = _quick_reads(impl)
    if quick_reads is None or type(sources) not in (list, tuple) or not sources:
        return None
    if type(eps) is not float or not 0 <= eps < math.inf:
        return None
    if type(query_D) not in PLAIN or not PLAIN.issuperset(map(type, sources)):
        return None
    shape = sources[0].shape
    others = sources if around_D is None else [*sources, around_D]
    if not shape or query_D.shape != shape[-1:] or any(x.shape != shape for x in others):
        return None
    found = quick_reads.read([query_D], [key_weight_D], list(sources), eps, around_D=around_D)
    return None if found is None else found.mixes[0]


def read(
    queries: list[Tensor],
    key_weights: list[Tensor],
    rows: list[Tensor],
    eps: float,
    impl: str | None,
    has_terms: bool = False,
    asked: Asked | None = None,
    around_D: Tensor | None = None,
    wants_lse: bool = False,
    norm: PlainNorm | None = None,
) -> Found | None:
    """As `QuickReads.read`; None where the long way must be gone."""
    if torch.compiler.is_compiling() or is_watched():
        return None
    quick_reads = _chosen.get(impl)
    if quick_reads is None:
        return None
    return quick_reads.read(
        queries, key_weights, rows, eps, has_terms, asked, around_D, wants_lse, norm
    )


def is_quick(x: Tensor, impl: str | None) -> bool:
    """Whether this is a plain tensor, and nobody records what is done to it.

    Also chooses the kernel of `read`, since to ask the environment takes as long as a read. A
    kernel that is not loaded yet is: a model's first forward rounds as all others do.
    """
    if torch.compiler.is_compiling() or is_watched() or type(x) not in PLAIN:
        return False
    if x.is_cpu and _is_chosen(impl):
        runs_here("cpu")
    _chosen[impl] = _quick_reads(impl)
    return True


def _quick_reads(impl: str | None) -> QuickReads | None:
    """Of the CPU kernel, where it is chosen and loaded and nobody watches."""
    if torch.compiler.is_compiling() or is_watched():
        return None
    kernel = getattr(loaded.get("cpu"), "kernel", None)
    return kernel.quick if _is_chosen(impl) and isinstance(kernel, CpuKernel) else None


def _is_chosen(impl: str | None) -> bool:
    return impl == "cpu" or (impl is None and CHOICE not in os.environ)
