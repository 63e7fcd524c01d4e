"""How an implementation of each kind is called, and what it must return."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnres.conformance.cases import Case, KindName

SIGNATURES: dict[KindName, str] = {
    "op": "f(query, sources, key_weight, eps) -> mix",
    "full": "f(embed, outputs, queries, key_weights, eps) -> reads",
    "block": "f(embed, outputs, queries, key_weights, sublayers_per_block, eps) -> reads",
    "model": "f(embed, sublayers, queries, key_weights, sublayers_per_block, eps) -> output read",
    "start": "f(dim, n_sublayers) -> queries, key_weights",
}


class UnfitError(Exception):
    """What was returned is no answer."""


def call(kind: KindName, function: Callable[..., Any], case: Case, given: dict[str, Any]) -> Tensor:
    """What `function` returns, of the shape that was asked for; UnfitError where it is not."""
    f = _with_eps(function, case.eps)
    if kind == "op":
        returned = f(given["query"], given["sources"], given["key_weight"])
        return _fitting(tensor_of(returned), case.upstream.shape)
    middle = [given["queries"], given["key_weights"]]
    size = [] if kind == "full" else [case.sublayers_per_block]
    if kind == "model":
        stubs = Stubs(given["outputs"])
        last = f(given["embed"], stubs.sublayers, *middle, *size)
        returned = [*stubs.reads(), last]
    else:
        returned = f(given["embed"], given["outputs"], *middle, *size)
    return _fitting(_stacked(returned, len(case.upstream)), case.upstream.shape)


class Stubs:
    """Sublayers that return given outputs and remember what they read."""

    def __init__(self, outputs: Sequence[Any]):
        self.outputs = outputs
        self.seen: dict[int, Any] = {}
        self.sublayers = [partial(self._run, depth) for depth in range(len(outputs))]

    def reads(self) -> list[Any]:
        if list(self.seen) != list(range(len(self.outputs))):
            raise UnfitError(f"sublayers 0 to {len(self.outputs) - 1} ran as {list(self.seen)}")
        return list(self.seen.values())

    def _run(self, depth: int, h: Any) -> Any:
        self.seen.setdefault(depth, h)  # recomputed activations come a second time
        return self.outputs[depth]


def _with_eps(function: Callable[..., Any], eps: float) -> Callable[..., Any]:
    """`function` with the epsilon as its last argument, by name where that is asked for."""
    try:
        named = inspect.signature(function).parameters.get("eps")
    except (TypeError, ValueError):
        named = None
    if named is not None and named.kind is inspect.Parameter.KEYWORD_ONLY:
        return partial(function, eps=eps)
    return lambda *arguments: function(*arguments, eps)


def _stacked(returned: Any, n_reads: int) -> Tensor:
    if not isinstance(returned, list | tuple):
        return tensor_of(returned)
    if len(returned) != n_reads:
        raise UnfitError(
            f"returned {len(returned)} reads, expected {n_reads}: a sublayer each and one"
        )
    return torch.stack([tensor_of(x) for x in returned])


def tensor_of(returned: Any) -> Tensor:
    if isinstance(returned, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(returned))
    if not isinstance(returned, Tensor):
        raise UnfitError(f"returned a {type(returned).__name__} where a tensor was expected")
    return returned


def _fitting(returned: Tensor, shape: torch.Size) -> Tensor:
    if returned.shape != shape:
        raise UnfitError(f"returned shape {list(returned.shape)}, expected {list(shape)}")
    if not returned.dtype.is_floating_point:
        raise UnfitError(f"returned {word(returned.dtype)}, expected a floating point dtype")
    return returned


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
