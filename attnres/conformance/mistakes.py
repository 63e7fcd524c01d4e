"""The mistakes that have a name, each a wrong implementation, and several of them together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnres.conformance import op_steps, schedule_steps, start_steps
from attnres.conformance.cases import KindName
from attnres.conformance.habits import HABITS
from attnres.conformance.mistake import Mistake, Part
from attnres.conformance.op_mistakes import OP_MISTAKES
from attnres.conformance.schedule_mistakes import SCHEDULE_MISTAKES
from attnres.conformance.start_steps import START_MISTAKES

MISTAKES: dict[str, Mistake] = {
    mistake.name: mistake
    for mistake in (*OP_MISTAKES, *SCHEDULE_MISTAKES, *START_MISTAKES, *HABITS)
}


PRECISION = ("narrow_arithmetic", "cast_before_weight")  # right in a wider dtype
PARTS: dict[KindName, tuple[Part, ...]] = {
    "op": ("op",),
    "full": ("schedule", "op"),
    "block": ("schedule", "blocks", "op"),
    "model": ("schedule", "blocks", "op"),
    "start": ("start",),
}


def mistakes_of(kind: KindName) -> tuple[Mistake, ...]:
    """Named mistakes that an implementation of this kind can show, its habits apart."""
    return tuple(x for x in MISTAKES.values() if x.part in PARTS[kind])


def combine(kind: KindName, *mistakes: Mistake) -> Callable[..., Any] | None:
    """The implementation that makes all of them; None where two want the same step."""
    names = [(x.part == "op", step) for x in mistakes for step in x.steps]
    if len(set(names)) < len(names):
        return None
    op = replace(op_steps.RIGHT, **_steps("op", mistakes))
    if kind == "op":
        return op
    if kind == "start":
        return replace(start_steps.RIGHT, **_steps("start", mistakes))
    steps = _steps("schedule", mistakes) | _steps("blocks", mistakes)
    schedule = replace(schedule_steps.RIGHT, attend=op, **steps)
    return schedule.full if kind == "full" else schedule


def right(kind: KindName) -> Callable[..., Any]:
    """The implementation without a mistake."""
    found = combine(kind)
    assert found is not None
    return found


def _steps(part: Part, mistakes: tuple[Mistake, ...]) -> dict[str, Callable[..., Any]]:
    return {name: step for x in mistakes if x.part == part for name, step in x.steps.items()}
