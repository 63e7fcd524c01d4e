"""A kernel made differentiable: one read of the sources, for one query or several."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.ops import deviation, gradient_sink, reference
from attnres.ops.deviation import Around
from attnres.ops.kernel import (
    Given,
    Kernel,
    MemoryKernel,
    SourceGradients,
    Upstream,
    gradient_like,
    refuse_transforms,
)
from attnres.ops.precision import without_autocast
from attnres.ops.sources import Stack, tensors_of


class Plan(NamedTuple):
    """What a read is, apart from its tensors."""

    kernel: Kernel
    eps: float
    split: bool  # one mix a query, or all in one tensor
    stacked_along: int | None  # of sources in one tensor


def read(
    kernel: Kernel,
    folded_QD: Tensor,
    sources: Sequence[Tensor],
    given: Given | None,
    eps: float,
    split: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """lse_Q and the mixes: one [..., D] of each query, or where not `split` one [Q, ..., D]."""
    stacked_along = sources.dim if isinstance(sources, Stack) else None
    tensors = tensors_of(sources)
    inputs = (folded_QD, *(given or (None, None)), *tensors)
    if isinstance(kernel, MemoryKernel) and not kernel.takes(inputs):
        mix_QD, lse_Q, *_ = kernel.op(folded_QD, list(sources), *(given or (None, None)), eps)
        return lse_Q, mix_QD.unbind(0) if split else (mix_QD,)
    plan = Plan(kernel, eps, split, stacked_along)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        if not torch.compiler.is_compiling():
            refuse_transforms(inputs)
        lse_Q, *mixes = _Read.apply(plan, gradient_sink.witness(tensors), *inputs)
        return lse_Q, tuple(mixes)
    result = kernel.forward(folded_QD, sources, given, eps)
    return result.lse_Q, _split(plan, result.mix_QD)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, witness, folded_QD, given_mix_QD, given_lse_Q, *sources):
        ctx.set_materialize_grads(False)
        ctx.plan = plan
        ctx.n_sources = len(sources)
        ctx.has_given = given_mix_QD is not None and not isinstance(plan.kernel, Around)
        ctx.owners = [
            None if witness is None else gradient_sink.owner_of(source) for source in sources
        ]
        given = None if given_mix_QD is None else Given(given_mix_QD, given_lse_Q)
        result = plan.kernel.forward(folded_QD, _unpacked(plan, sources), given, plan.eps)
        kept = given if given and ctx.has_given else ()
        ctx.save_for_backward(folded_QD, *sources, *kept, *result.saved)
        return result.lse_Q, *_split(plan, result.mix_QD)

    @staticmethod
    def backward(ctx, *grad_outputs):
        if not torch.compiler.is_compiling() and _is_transformed(grad_outputs):
            return _backward_by_reference(ctx, grad_outputs)
        plan, needed = ctx.plan, ctx.needs_input_grad
        folded_QD, sources, given, saved = _inputs(ctx)
        gradients, into = _destinations(ctx, sources)
        upstream = Upstream(_by_query(plan, grad_outputs[1:], len(folded_QD)), grad_outputs[0])
        with without_autocast(folded_QD.device):
            other = plan.kernel.backward(
                upstream, folded_QD, _unpacked(plan, sources), given, saved, into, needed[2]
            )
        return None, gradient_sink.gradient_of_witness(), *other, *gradients


def _split(plan: Plan, mix_QD: Tensor) -> tuple[Tensor, ...]:
    if not plan.split:
        return (mix_QD,)
    if len(mix_QD) == 1 and not torch.compiler.is_compiling():
        return (mix_QD.squeeze_(0),)  # in place: a view could not be written to by a sublayer
    return mix_QD.unbind(0)


def _by_query(
    plan: Plan, grad_mixes: Sequence[Tensor | None], n_queries: int
) -> Sequence[Tensor | None]:
    if plan.split:
        return grad_mixes
    return [None] * n_queries if grad_mixes[0] is None else grad_mixes[0].unbind(0)


def _unpacked(plan: Plan, sources: Sequence[Tensor]) -> Sequence[Tensor]:
    return sources if plan.stacked_along is None else sources[0].unbind(plan.stacked_along)


def _inputs(ctx: Any) -> tuple[Tensor, Sequence[Tensor], Given | None, Sequence[Tensor]]:
    folded_QD, *tensors = ctx.saved_tensors
    sources, rest = tensors[: ctx.n_sources], tensors[ctx.n_sources :]
    if not ctx.has_given:
        return folded_QD, sources, None, rest
    return folded_QD, sources, Given(*rest[:2]), rest[2:]


def _destinations(
    ctx: Any, sources: Sequence[Tensor]
) -> tuple[list[Tensor | None], SourceGradients]:
    """The gradients to return, and the buffers to fill, of which some belong to their source."""
    needed = ctx.needs_input_grad[5:]
    if ctx.plan.stacked_along is not None:
        gradient = gradient_like(sources[0]) if needed[0] else None
        buffers = _unpacked(ctx.plan, sources if gradient is None else [gradient])
        into = [None] * len(buffers) if gradient is None else buffers
        return [gradient], SourceGradients(into, [False] * len(into))
    owners = _open_owners(ctx)
    gradients = [
        gradient_like(source) if is_needed and owner is None else None
        for source, is_needed, owner in zip(sources, needed, owners, strict=True)
    ]
    into, accumulate = list(gradients), [False] * len(sources)
    for i, owner in enumerate(owners):
        if owner is not None:
            into[i], accumulate[i] = gradient_sink.buffer_of(owner, sources[i])
    return gradients, SourceGradients(into, accumulate)


def _open_owners(ctx: Any) -> list[Any | None]:
    """Whose buffer is filled; a source that is given twice fills it once."""
    owners: list[Any | None] = []
    for owner, needed in zip(ctx.owners, ctx.needs_input_grad[5:], strict=True):
        fills = needed and gradient_sink.is_open(owner)
        owners.append(owner if fills and owner not in owners else None)
    return owners


def _is_transformed(grad_outputs: Sequence[Tensor | None]) -> bool:
    """Under create_graph=True, or with many upstream gradients at once (is_grads_batched=True)."""
    return torch.is_grad_enabled() or any(g is not None and _is_batched(g) for g in grad_outputs)


def _is_batched(x: Tensor) -> bool:
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]  not in its stubs
    return functorch.is_legacy_batchedtensor(x) or functorch.is_batchedtensor(x)


def _backward_by_reference(ctx: Any, grad_outputs: Sequence[Tensor | None]) -> tuple:
    """The gradients, as a graph of their own where grad mode is on."""
    is_kept = torch.is_grad_enabled()
    if all(g is None for g in grad_outputs):
        return (None,) * len(ctx.needs_input_grad)
    folded_QD, sources, given, _ = _inputs(ctx)
    if isinstance(ctx.plan.kernel, Around):  # any stream has the same derivatives
        stream_D = torch.zeros_like(_unpacked(ctx.plan, sources)[0]).requires_grad_()
        given = Given(stream_D.unsqueeze(0), folded_QD.new_empty(0))
    tensors = [folded_QD, *(given or (None, None)), *sources]
    with torch.enable_grad(), without_autocast(folded_QD.device):
        # aliases, because a tensor that is given twice has two gradients
        aliases: list[Any] = [x if x is None else x.view_as(x) for x in tensors]
        outputs = _by_reference(ctx.plan, *aliases)
        pairs = [(o, g) for o, g in zip(outputs, grad_outputs, strict=True) if g is not None]
        needed = ctx.needs_input_grad[2:]
        wanted = [x for x, n in zip(aliases, needed, strict=True) if n]
        found = torch.autograd.grad(
            [o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=is_kept
        )
    gradients = iter(found)
    return None, None, *(next(gradients) if n else None for n in needed)


def _by_reference(
    plan: Plan, folded_QD: Tensor, mix_QD: Tensor | None, lse_Q: Tensor | None, *sources: Tensor
) -> tuple[Tensor, ...]:
    ones_QD, values = torch.ones_like(folded_QD), _unpacked(plan, sources)
    if plan.kernel is deviation or isinstance(plan.kernel, Around):
        mix_D = reference.depth_deviation(folded_QD[0], values, ones_QD[0], plan.eps)
        mix_D = mix_D if mix_QD is None else reference.around(mix_QD[0], mix_D)
        mix_QD, lse_Q = mix_D.unsqueeze(0), folded_QD.new_zeros(1, *mix_D.shape[:-1])
    elif mix_QD is None or lse_Q is None:
        mix_QD, lse_Q = reference.depth_attention_queries(folded_QD, values, ones_QD, plan.eps)
    else:
        merged = [
            reference.merge(mix_D, lse, values, folded_D, ones_D, plan.eps)
            for mix_D, lse, folded_D, ones_D in zip(mix_QD, lse_Q, folded_QD, ones_QD, strict=True)
        ]
        mix_QD, lse_Q = (torch.stack(parts) for parts in zip(*merged, strict=True))
    return lse_Q, *_split(plan, mix_QD)
