"""A kernel as ops of `torch.library`, for the compiler, fake tensors and whatever else traces.

Eager calls go to the kernel itself: the dispatcher costs more than a read of one token.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnres.ops.kernel import Given, Kernel, SourceGradients, Upstream, gradient_like
from attnres.ops.precision import without_autocast

LIBRARY = torch.library.Library("attnres", "DEF")

_INPUTS = "Tensor folded, Tensor[] sources, Tensor? mix, Tensor? lse"
_FORWARD = f"({_INPUTS}, float eps) -> (Tensor mix, Tensor lse, Tensor rstd, Tensor logits)"
_BACKWARD = (
    f"(Tensor? grad_mix, Tensor? grad_lse, {_INPUTS}, Tensor rstd, Tensor logits, bool[] needed)"
    " -> Tensor[]"
)


def define(name: str, kernel: Kernel, *device_types: str) -> Callable[..., Sequence[Tensor]]:
    """The op `attnres::name`, differentiable, with the kernel's four tensors as outputs.

    The kernel must save 1 / rms, [..., S], and the logits, [Q, ..., S].
    """
    LIBRARY.define(name + _FORWARD)
    LIBRARY.define(f"{name}_backward{_BACKWARD}")
    for device_type in device_types:
        LIBRARY.impl(name, _forward(kernel), device_type)
        LIBRARY.impl(f"{name}_backward", _backward(kernel), device_type)
    torch.library.register_fake(f"attnres::{name}", _fake_forward)
    torch.library.register_fake(f"attnres::{name}_backward", _fake_backward)
    backward_op = getattr(torch.ops.attnres, f"{name}_backward").default
    torch.library.register_autograd(
        f"attnres::{name}", _autograd(backward_op), setup_context=_setup_context
    )
    torch.library.register_autograd(f"attnres::{name}_backward", _refuse_second_derivative)
    return getattr(torch.ops.attnres, name).default


def _forward(kernel: Kernel) -> Callable[..., tuple[Tensor, ...]]:
    def forward(folded_QD, sources, mix_QD, lse_Q, eps):
        result = kernel.forward(folded_QD, sources, _given(mix_QD, lse_Q), eps)
        return result.mix_QD, result.lse_Q, *result.saved

    return forward


def _backward(kernel: Kernel) -> Callable[..., list[Tensor]]:
    def backward(grad_mix_QD, grad_lse_Q, folded_QD, sources, mix_QD, lse_Q, rstd, logits, needed):
        grads = [None] * len(folded_QD) if grad_mix_QD is None else grad_mix_QD.unbind(0)
        needs_folded, *needs_source = needed
        buffers = [
            gradient_like(v) if n else None for v, n in zip(sources, needs_source, strict=True)
        ]
        other = kernel.backward(
            Upstream(grads, grad_lse_Q),
            folded_QD,
            sources,
            _given(mix_QD, lse_Q),
            (rstd, logits),
            SourceGradients(buffers, [False] * len(buffers)),
            needs_folded,
        )
        return [_or_empty(x, folded_QD) for x in (*other, *buffers)]

    return backward


def _fake_forward(folded_QD, sources, mix_QD, lse_Q, eps):
    first, n_queries = sources[0], folded_QD.shape[0]
    rows = first.shape[:-1]
    return (
        first.new_empty((n_queries, *first.shape)),
        folded_QD.new_empty((n_queries, *rows)),
        folded_QD.new_empty((*rows, len(sources))),
        folded_QD.new_empty((n_queries, *rows, len(sources))),
    )


def _fake_backward(
    grad_mix_QD, grad_lse_Q, folded_QD, sources, mix_QD, lse_Q, rstd, logits, needed
):
    needs_folded, *needs_source = needed
    return [
        torch.empty_like(folded_QD) if needs_folded else folded_QD.new_empty(0),
        folded_QD.new_empty(0) if mix_QD is None else gradient_like(mix_QD),
        folded_QD.new_empty(0) if lse_Q is None else gradient_like(lse_Q),
        *(
            gradient_like(v) if n else folded_QD.new_empty(0)
            for v, n in zip(sources, needs_source, strict=True)
        ),
    ]


def _setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    folded_QD, sources, mix_QD, lse_Q, _ = inputs
    ctx.n_sources, ctx.has_given = len(sources), mix_QD is not None
    given = (mix_QD, lse_Q) if ctx.has_given else ()
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(folded_QD, *sources, *given, *output[2:])


def _autograd(backward_op: Callable[..., list[Tensor]]) -> Callable[..., tuple]:
    def backward(ctx, grad_mix_QD, grad_lse_Q, *_):
        folded_QD, *tensors = ctx.saved_tensors
        *sources_and_given, rstd, logits = tensors
        sources = sources_and_given[: ctx.n_sources]
        given = sources_and_given[ctx.n_sources :] or (None, None)
        needs_folded, needs_sources, needs_mix, needs_lse, _ = ctx.needs_input_grad
        needed = [needs_folded, *needs_sources]
        with without_autocast(folded_QD.device):
            folded, mix, lse, *gradients = backward_op(
                grad_mix_QD, grad_lse_Q, folded_QD, sources, *given, rstd, logits, needed
            )
        return (
            folded if needs_folded else None,
            [g if n else None for g, n in zip(gradients, needs_sources, strict=True)],
            mix if needs_mix else None,
            lse if needs_lse else None,
            None,
        )

    return backward


def _refuse_second_derivative(ctx: Any, *_: Any) -> NoReturn:
    """Without a formula it would be zero, with a warning."""
    raise RuntimeError("the op of a kernel has no second derivative, impl='reference' has")


def _given(mix_QD: Tensor | None, lse_Q: Tensor | None) -> Given | None:
    return None if mix_QD is None or lse_Q is None else Given(mix_QD, lse_Q)


def _or_empty(x: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if x is None else x
