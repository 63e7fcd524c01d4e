"""How far an answer may err: four times as far as the right steps do in the same dtype.

The right steps are asked several times, with channels and sources in other orders, which are as
good as any: a tolerance then does not hang on the luck of one order. Float64 has no answer more
exact than itself to be measured against, so its errors are those of float32, scaled by the two
roundings, with a second factor for the luck of that.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from attnres.conformance.answers import Answer, Way, ask
from attnres.conformance.cases import Case, KindName, op_cases
from attnres.conformance.mistakes import right
from attnres.conformance.schedule_cases import block_cases, full_cases
from attnres.conformance.start_steps import start_cases

FACTOR = 4.0
Errors = dict[str, tuple[float, float]]  # of each quantity: the largest error, and what is allowed


@cache
def cases_of(kind: KindName) -> tuple[Case, ...]:
    """The questions to a kind of implementation."""
    match kind:
        case "op":
            return op_cases()
        case "full":
            return full_cases()
        case "start":
            return start_cases()
        case "block":
            return block_cases()
        case "model":
            return cases_of("block")
    raise ValueError(f"no kind {kind!r}; there are op, full, block, model and start")


@cache
def case_named(kind: KindName, name: str) -> Case:
    return next(case for case in cases_of(kind) if case.name == name)


@cache
def exact(kind: KindName, name: str) -> dict[str, Tensor]:
    """The right answer and its gradients, computed in float64."""
    return _right(kind, case_named(kind, name), torch.float64)


@cache
def budgets(kind: KindName, name: str, dtype: torch.dtype) -> dict[str, float]:
    """What each quantity of an answer may err, as the largest difference of a number."""
    case, values = case_named(kind, name), exact(kind, name)
    if case.check == "exact":
        return dict.fromkeys(values, 0.0)
    measured = torch.float32 if dtype == torch.float64 else dtype
    scale = FACTOR * torch.finfo(dtype).eps / torch.finfo(measured).eps if dtype != measured else 1
    return {
        name: FACTOR * scale * (_error(kind, case, name, measured) + _rounding(value, measured))
        for name, value in values.items()
    }


def errors(kind: KindName, name: str, dtype: torch.dtype, values: dict[str, Tensor]) -> Errors:
    """Error and budget of each quantity that is answered."""
    return {
        quantity: (
            distance(comparable(kind, name, quantity, value), right_value(kind, name, quantity)),
            allowance(kind, name, quantity, dtype),
        )
        for quantity, value in values.items()
    }


def comparable(kind: KindName, name: str, quantity: str, value: Tensor) -> Tensor:
    """The value, or whether it is finite where no more is asked."""
    if not _only_finite(kind, name, quantity):
        return value
    return torch.zeros(1) if value.isfinite().all() else torch.full((1,), torch.inf)


def right_value(kind: KindName, name: str, quantity: str) -> Tensor:
    """What `comparable` should be."""
    if _only_finite(kind, name, quantity):
        return torch.zeros(1)
    return exact(kind, name)[quantity]


def allowance(kind: KindName, name: str, quantity: str, dtype: torch.dtype) -> float:
    """What `comparable` may err."""
    return 0.0 if _only_finite(kind, name, quantity) else budgets(kind, name, dtype)[quantity]


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference; a number that is finite in one alone is infinitely far off."""
    if a.numel() == 0:
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    return float(difference.nan_to_num(nan=torch.inf, posinf=torch.inf).amax())


def _only_finite(kind: KindName, name: str, quantity: str) -> bool:
    return case_named(kind, name).check == "finite" and quantity.startswith("gradient")


def _rounding(value: Tensor, dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps * float(value.abs().amax()) if value.numel() else 0.0


def _error(kind: KindName, case: Case, quantity: str, dtype: torch.dtype) -> float:
    value = exact(kind, case.name)[quantity]
    return max(distance(x[quantity], value) for x in _orders(kind, case.name, dtype))


@cache
def _orders(kind: KindName, name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], ...]:
    """Right answers in `dtype` with channels, and sources of an op, in other orders."""
    case = case_named(kind, name)
    found = [_right(kind, case, dtype)]
    for step in (-1, 1, 2):
        turned = replace(
            case,
            inputs={name: _turn(x, step) for name, x in case.inputs.items()},
            upstream=_turn(case.upstream, step),
        )
        answer = _right(kind, turned, dtype)
        found.append({name: _turn(x, step, back=True) for name, x in answer.items()})
    if kind == "op":
        turned = replace(case, inputs=case.inputs | {"sources": case.inputs["sources"].flip(0)})
        answer = _right(kind, turned, dtype)
        sources = "gradient of sources"
        flipped = {sources: answer[sources].flip(0)} if sources in answer else {}
        found.append(answer | flipped)
    return tuple(found)


def _turn(x: Tensor, step: int, back: bool = False) -> Tensor:
    """Channels backwards, or rolled by `step`."""
    return x.flip(-1) if step < 0 else x.roll(-step if back else step, -1)


def _right(kind: KindName, case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    answered: Answer = ask(as_written(kind), right(as_written(kind)), case, Way(dtype))
    assert not answered.problem, answered.trace or answered.problem
    return answered.values


def as_written(kind: KindName) -> KindName:
    """The kind whose right and wrong steps answer the same questions."""
    return "block" if kind == "model" else kind
