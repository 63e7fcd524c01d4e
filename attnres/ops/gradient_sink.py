"""One gradient buffer a source, filled by all its readers.

Autograd adds the gradients of a source that many reads share one by one: each read writes a D-wide
tensor and each addition reads two and writes a third. A source that went through `own` has a node
in the graph with a buffer; each read's backward writes or adds to it in its kernel, and the node,
which the engine runs after all readers, hands it over.

A buffer is used only where no one else could see the difference: not with hooks on the source,
with `retain_grad`, in a backward restricted to some inputs, under `create_graph` or the compiler.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from attnres.ops.kernel import gradient_like

# A leaf that nobody asks a gradient of by name: a backward restricted to some inputs leaves it out.
_WITNESS = torch.zeros(0, requires_grad=True)
_WITNESS_NODE = get_gradient_edge(_WITNESS).node  # held, since a leaf lets go of an unused one


class _Owner(torch.autograd.Function):
    """The identity; its node in the graph, which is also `ctx`, holds the buffers."""

    @staticmethod
    def forward(ctx: Any, source: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.buffers = {}
        return source.view_as(source)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Tensor | None:
        (gradient,) = grad_outputs
        buffer = ctx.buffers.pop(_backward_run(), None)
        if buffer is None:
            return gradient
        return buffer if gradient is None else buffer.add_(gradient)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (tangent,) = tangents
        return tangent.view_as(tangent)


def own(source: Tensor) -> Tensor:
    """The same source, whose readers share one gradient buffer; not to be changed in place."""
    if not torch.is_grad_enabled() or not source.requires_grad or _is_transformed():
        return source
    owned = _Owner.apply(source)
    node = owned.grad_fn
    node.source = weakref.ref(owned)
    node.hooks = [
        _hooks_by(register)
        for register in (owned.register_hook, node.register_prehook, node.register_hook)
    ]
    return owned


def witness(sources: Sequence[Tensor]) -> Tensor | None:
    """An input for readers of owned sources, by which they know a backward that is restricted."""
    if _is_transformed() or all(owner_of(source) is None for source in sources):
        return None
    return _WITNESS


def owner_of(source: Tensor) -> Any | None:
    """The node that owns the source's buffer, if it went through `own` and nothing since."""
    node = source.grad_fn
    return node if isinstance(node, _Owner._backward_cls) else None


def is_open(owner: Any | None) -> bool:
    """Whether, in this backward, a buffer would be seen by its owner alone."""
    if owner is None or any(owner.hooks) or _is_compiled_autograd():
        return False
    if not torch._C._will_engine_execute_node(_WITNESS_NODE):  # type: ignore[attr-defined]  not in its stubs
        return False
    source = owner.source()
    return source is None or not source.retains_grad


def buffer_of(owner: Any, like: Tensor) -> tuple[Tensor, bool]:
    """The owner's buffer in this backward, and whether another reader has written it."""
    run = _backward_run()
    buffer = owner.buffers.get(run)
    if buffer is not None:
        return buffer, True
    buffer = gradient_like(like)
    owner.buffers[run] = buffer  # beside those of other threads
    return buffer, False


def _is_transformed() -> bool:
    """Under the compiler or torch.func, which take a function apart."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def gradient_of_witness() -> Tensor | None:
    """Nothing; compiled autograd adds up gradients itself, and cannot add None."""
    return torch.zeros_like(_WITNESS) if _is_compiled_autograd() else None


def _is_compiled_autograd() -> bool:
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiled_autograd is not None and compiled_autograd.in_compiled_autograd_region


def _hooks_by(register: Callable[[Callable[..., None]], Any]) -> dict[int, Any]:
    """The dict in which a tensor or a node keeps the hooks that are registered so."""
    handle = register(lambda *_: None)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return hooks


def _backward_run() -> int:
    return torch._C._current_graph_task_id()
