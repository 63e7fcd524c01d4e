"""Asking an implementation one question, and what it answers or fails to."""

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
STACKED = ("sources", "outputs")  # inputs that are handed in as lists


@dataclass(frozen=True)
class Way:
    """How questions are put.

    Attributes:
        dtype: of all inputs.
        arrays: numpy arrays in the place of tensors; then there are no gradients.
        gradients: whether every gradient is asked for.
    """

    dtype: torch.dtype
    device: str = "cpu"
    arrays: bool = False
    gradients: bool = True


@dataclass(frozen=True)
class Answer:
    """Float64 tensors by name, or what went wrong; `habits` are named mistakes of behaviour."""

    values: dict[str, Tensor]
    problem: str = ""
    trace: str = ""
    habits: tuple[str, ...] = ()


class UnfitError(Exception):
    """What was returned is no answer."""


def ask(kind: KindName, function: Callable[..., Any], case: Case, way: Way) -> Answer:
    """The answer and every gradient, asked for twice; never raises what `function` raises."""
    try:
        first = ask_once(kind, function, case, way)
        second = ask_once(kind, function, case, way)
    except UnfitError as error:
        return Answer({}, str(error))
    except Exception as error:
        lines = str(error).strip().splitlines() or ["without a word"]
        return Answer({}, f"{type(error).__name__}: {lines[0][:200]}", traceback.format_exc())
    habits = set(first.habits) | ({"answers_change"} if _differ(first, second, way) else set())
    return Answer(first.values, first.problem, habits=tuple(sorted(habits)))


def ask_once(kind: KindName, function: Callable[..., Any], case: Case, way: Way) -> Answer:
    """The answer and every gradient; raises what `function` raises, or UnfitError."""
    if kind == "start":
        return _ask_start(function, case)
    wants = way.gradients and not way.arrays
    leaves = {
        name: x.to(way.device, way.dtype, copy=True).requires_grad_(
            wants and name not in case.frozen
        )
        for name, x in case.inputs.items()
    }
    given = {name: _hand_in(name, x, case, way) for name, x in leaves.items()}
    before = {name: _copy(x) for name, x in given.items()}
    returned = call(kind, function, case, given)
    habits = () if _unchanged(given, before) else ("changes_inputs",)
    problem = "" if returned.dtype == way.dtype else _dtype_words(returned.dtype, way.dtype)
    name = "mix" if kind == "op" else "reads"
    values = {name: returned.detach().to("cpu", torch.float64)}
    if wants and not habits:  # a backward refuses what was changed in place
        if returned.requires_grad:
            values |= _gradients(returned, leaves, case)
        else:
            problem = problem or "returned what has no gradient (--no-gradients checks the rest)"
    return Answer(values, problem, habits=habits)


def call(kind: KindName, function: Callable[..., Any], case: Case, given: dict[str, Any]) -> Tensor:
    """What `function` returns, of the shape that was asked for; UnfitError where it is not."""
    f = _with_eps(function, case.eps)
    if kind == "op":
        returned = f(given["query"], given["sources"], given["key_weight"])
        return _fitting(_tensor(returned), case.upstream.shape)
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


def _hand_in(name: str, leaf: Tensor, case: Case, way: Way) -> Any:
    """What the function gets: it is no leaf, so that a change in place is seen, not refused."""
    if name not in STACKED:
        return leaf.detach().numpy() if way.arrays else leaf.clone()
    if case.strided:
        bank = leaf.movedim(0, -2).contiguous()
        rows = [bank.select(-2, i) for i in range(len(leaf))]
    else:
        rows = [row.clone() for row in leaf.unbind()]
    return [row.numpy() for row in rows] if way.arrays else rows


def _copy(given: Any) -> Any:
    if isinstance(given, list):
        return [_copy(x) for x in given]
    return given.detach().clone() if isinstance(given, Tensor) else given.copy()


def _unchanged(given: dict[str, Any], before: dict[str, Any]) -> bool:
    for name, copies in before.items():
        rows, old = (x if isinstance(x, list) else [x] for x in (given[name], copies))
        if len(rows) != len(old):
            return False
        for x, y in zip(rows, old, strict=True):
            same = torch.equal(x, y) if isinstance(x, Tensor) else np.array_equal(x, y)
            if not same:
                return False
    return True


def _stacked(returned: Any, n_reads: int) -> Tensor:
    if not isinstance(returned, list | tuple):
        return _tensor(returned)
    if len(returned) != n_reads:
        raise UnfitError(
            f"returned {len(returned)} reads, expected {n_reads}: a sublayer each and one"
        )
    return torch.stack([_tensor(x) for x in returned])


def _tensor(returned: Any) -> Tensor:
    if isinstance(returned, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(returned))
    if not isinstance(returned, Tensor):
        raise UnfitError(f"returned a {type(returned).__name__} where a tensor was expected")
    return returned


def _fitting(returned: Tensor, shape: torch.Size) -> Tensor:
    if returned.shape != shape:
        raise UnfitError(f"returned shape {list(returned.shape)}, expected {list(shape)}")
    if not returned.dtype.is_floating_point:
        raise UnfitError(f"returned {_word(returned.dtype)}, expected a floating point dtype")
    return returned


def _gradients(returned: Tensor, leaves: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    names = [name for name, leaf in leaves.items() if leaf.requires_grad]
    upstream = case.upstream.to(returned.device, returned.dtype)
    found = torch.autograd.grad(
        returned, [leaves[name] for name in names], upstream, allow_unused=True
    )
    return {
        f"gradient of {name}": (torch.zeros_like(leaves[name]) if x is None else x)
        .detach()
        .to("cpu", torch.float64)
        for name, x in zip(names, found, strict=True)
    }


def _ask_start(function: Callable[..., Any], case: Case) -> Answer:
    """The share of queries that are not zero, and of key weights that are not one."""
    n_sublayers, dim = case.upstream.shape
    returned = function(dim, n_sublayers)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise UnfitError("returned no pair of queries and key weights")
    values = {}
    for name, rows, start in zip(("queries", "key_weights"), returned, (0, 1), strict=True):
        found = _tensor(rows)
        if found.shape not in ((n_sublayers, dim), (n_sublayers + 1, dim)):
            raise UnfitError(
                f"{name} have shape {list(found.shape)}, expected [{n_sublayers}, {dim}]: "
                "a row a reader, with or without the first"
            )
        values[f"changed {name}"] = (found.detach().cpu() != start).double().mean()
    return Answer(values)


def _differ(first: Answer, second: Answer, way: Way) -> bool:
    """By more than sums in another order would."""
    for name, x in first.values.items():
        largest = x.nan_to_num().abs().amax() if x.numel() else 0
        allowed = 16 * torch.finfo(way.dtype).eps * largest
        if not torch.allclose(x, second.values[name], rtol=0, atol=float(allowed), equal_nan=True):
            return True
    return False


def _dtype_words(found: torch.dtype, expected: torch.dtype) -> str:
    return f"returned {_word(found)} for inputs of {_word(expected)}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
