"""What a kernel of depth attention is: a forward and a backward over sources, for several queries.

A kernel knows neither parameters nor autograd: `read.py` makes one differentiable. All its tensors
have the query first, also where there is one query.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


class Given(NamedTuple):
    """Mixes over other sources, one a query, to be merged with the sources at hand."""

    mix_QD: Tensor  # [Q, ..., D], the dtype of the sources
    lse_Q: Tensor  # [Q, ...], the dtype of the arithmetic


class ReadResult(NamedTuple):
    """What a forward gives; `saved` is what the kernel's own backward asks for."""

    mix_QD: Tensor  # [Q, ..., D], the dtype of the sources
    lse_Q: Tensor  # [Q, ...], the dtype of the arithmetic
    saved: tuple[Tensor, ...]  # O(S) scalars a token


class Upstream(NamedTuple):
    """dL/dmix of every query, each [..., D], and dL/dlse; None is zero."""

    mixes: Sequence[Tensor | None]
    lse_Q: Tensor | None


class SourceGradients(NamedTuple):
    """Where the gradient of each source goes; None where it is not asked for."""

    buffers: Sequence[Tensor | None]  # each [..., D], overwritten or added to
    accumulate: Sequence[bool]


class OtherGradients(NamedTuple):
    """Gradients that a backward returns; None where they were not asked for."""

    folded_QD: Tensor | None
    mix_QD: Tensor | None
    lse_Q: Tensor | None


def gradient_like(x: Tensor) -> Tensor:
    """Room for the gradient of `x`, its rows side by side whatever the strides of `x`."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class Kernel(Protocol):
    """A module with these two functions.

    `folded_QD` is query * key_weight in the dtype of the arithmetic (float32 or float64); the
    sources are S tensors [..., D] of one dtype, shape and device, with any strides.
    """

    def forward(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
    ) -> ReadResult: ...

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
        """Fill `into`; the gradients of what is given are returned whenever it is."""
        ...


class MemoryKernel:
    """Base of the kernels that read memory themselves: other tensors go to their op."""

    op: Callable[..., Sequence[Tensor]]  # of `library.define`
    reads_around_streams = False  # whether forward and backward take `centered`
    device_type: str

    def takes(self, inputs: Sequence[Tensor | None]) -> bool:
        """Whether these are memory that the kernel reads, and nobody records what is done.

        A tensor may stand for what is not in its memory: its negative, or zeros.

        Raises:
            RuntimeError: a transform of torch.func or forward-mode autograd; neither would see
                what the kernel does.
        """
        if torch.compiler.is_compiling() or not {*PLAIN, type(None)}.issuperset(map(type, inputs)):
            return False
        refuse_transforms(inputs)
        folded_QD = inputs[0]
        assert folded_QD is not None
        if any(x is not None and (x.is_neg() or x._is_zerotensor()) for x in inputs):
            return False
        return folded_QD.device.type == self.device_type and not _is_recorded()


PLAIN = {Tensor, nn.Parameter}  # another type may have no memory of its own
_RECORDERS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_watched() -> bool:
    """Whether a transform or a mode of torch wants to see what is done."""
    return (
        torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
    )


def refuse_transforms(inputs: Sequence[Tensor | None]) -> None:
    """RuntimeError under a transform of torch.func, or forward-mode autograd of one of these."""
    is_dual = forward_ad._current_level >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in inputs
    )
    if is_dual or torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "a kernel knows neither torch.func nor forward-mode derivatives, impl='reference' does"
        )


def _is_recorded() -> bool:
    """By torch.jit.trace, or by torch.fx with true tensors: as ops, which it must see."""
    return torch._C._get_tracing_state() is not None or (
        torch._C._len_torch_dispatch_stack() > 0
        and any(torch._C._get_dispatch_mode(key) is not None for key in _RECORDERS)
    )
