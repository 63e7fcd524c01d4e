"""Asking an implementation one question, and what it answers or fails to."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnres.conformance.calling import UnfitError, call, tensor_of, word
from attnres.conformance.cases import Case, KindName

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
        found = tensor_of(rows)
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
    return f"returned {word(found)} for inputs of {word(expected)}"
