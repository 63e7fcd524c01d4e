"""What a residual method costs, counted from the method itself on tensors without values."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnres.cost.dispatch import Work
from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.residual import Mix, Residual, ResidualConfig, Ways

N_TOKENS = 4096  # many, so that what is of one size for any number of tokens rounds to nothing
N_FEW_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Of one method over a model; vectors are of D numbers a token."""

    n_params: int
    moved: float | None  # vectors a sublayer that a fused implementation moves; None: not said
    saved: float  # vectors that the backward keeps, over all sublayers
    checkpointed: float  # vectors kept where each layer is checkpointed: its input state
    carried: float  # vectors of the largest state between two sublayers: what a pipeline cut sends
    flops: float  # a token and a sublayer, forward, done plainly


def count(config: ResidualConfig, dim: int, n_sublayers: int) -> Counted:
    """Sublayers are taken to save nothing themselves, and to give a tensor of their own."""
    with torch.device("meta"):
        residual = config.build(dim, n_sublayers)
        embed_TD = torch.empty(N_TOKENS, dim, requires_grad=True)
    saved = saved_vectors(residual, embed_TD)
    checkpointed, carried = _state_vectors(residual, embed_TD)
    work = eager_work(residual, embed_TD[:N_FEW_TOKENS])
    return Counted(
        n_params=sum(parameter.numel() for parameter in residual.parameters()),
        moved=_moved(residual),
        saved=saved,
        checkpointed=checkpointed,
        carried=carried,
        flops=work.flops / N_FEW_TOKENS / n_sublayers,
    )


def _moved(residual: Residual[Any]) -> float | None:
    try:
        moved = [residual.traffic(depth).total for depth in range(residual.n_sublayers)]
    except NotImplementedError:
        return None
    return sum(moved) / len(moved)


def saved_vectors(residual: Residual[Any], embed_TD: Tensor) -> float:
    """Bytes of all distinct storages that autograd saves, but parameters, in vectors a token."""
    saved: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used twice

    def pack(x: Tensor) -> Tensor:
        saved[_address(x)] = x.untyped_storage()
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks
    for _ in _states(residual, embed_TD, lambda: hooks(pack, lambda x: x)):
        pass
    own = {_address(parameter) for parameter in residual.parameters()}
    n_bytes = sum(storage.nbytes() for key, storage in saved.items() if key not in own)
    return n_bytes / embed_TD.nbytes


def _state_vectors(residual: Residual[Any], embed_TD: Tensor) -> tuple[float, float]:
    """Over the states before each layer together, and of the largest state."""
    states = [_storages(x) for x in _states(residual, embed_TD)]
    between_layers: dict[int, int] = {}
    for state in states[:-1:SUBLAYERS_PER_LAYER]:
        between_layers |= {key: storage.nbytes() for key, storage in state.items()}
    largest = max(sum(storage.nbytes() for storage in state.values()) for state in states)
    return sum(between_layers.values()) / embed_TD.nbytes, largest / embed_TD.nbytes


def eager_work(residual: Residual[Any], embed_TD: Tensor) -> Work:
    """What the forward in plain PyTorch moves and computes, op by op, sublayers apart.

    The residual is left with the reference as its implementation of depth attention.
    """
    for module in residual.modules():
        if hasattr(module, "impl"):
            cast(Any, module).impl = "reference"
    work = Work()
    with torch.no_grad():
        for _ in _states(residual, embed_TD, lambda: work):
            pass
    return work


def _states(
    residual: Residual[Any],
    embed_TD: Tensor,
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Any]:
    """The state before each sublayer and after the last; the residual's own code runs `inside`."""
    with inside():
        state = residual.start(embed_TD)
    for depth in range(residual.n_sublayers):
        yield state
        with inside():
            h_TD, state = residual.read(state, depth)
        out_TD = _sublayer(h_TD)
        with inside():
            state = residual.write(state, depth, out_TD)
    yield state
    with inside():
        residual.finish(state)


def _sublayer(h_TD: Mix) -> Tensor:
    """Multiplication by a number, whose backward saves nothing."""
    whole_TD = h_TD.query_BTD + h_TD.key_BTD + h_TD.value_BTD if isinstance(h_TD, Ways) else h_TD
    return whole_TD * 0.9


def _storages(state: Any) -> dict[int, torch.UntypedStorage]:
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    return {_address(leaf): leaf.untyped_storage() for leaf in leaves}


def _address(x: Tensor) -> int:
    """Of the storage itself: tensors on the meta device have no data."""
    return x.untyped_storage()._cdata
