"""Whether an implementation conforms, and if not, which named mistake it behaves like."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnres.conformance.answers import Answer, Way, ask
from attnres.conformance.budget import Errors, allowance, as_written, cases_of, errors, exact
from attnres.conformance.calling import SIGNATURES
from attnres.conformance.cases import KindName
from attnres.conformance.diagnosis import Diagnosis, diagnose

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # the widest first
Answers = Mapping[tuple[torch.dtype, str], Answer]  # by dtype and case


@dataclass(frozen=True)
class Row:
    """One case in one dtype: error and budget of each quantity, or what went wrong."""

    case: str
    dtype: torch.dtype
    errors: Errors
    problem: str = ""
    trace: str = ""

    @property
    def wrong(self) -> list[str]:
        """Quantities outside the budget, the worst first, each over its largest right number."""
        found = {name: error for name, (error, allowed) in self.errors.items() if error > allowed}
        return sorted(found, key=lambda name: -found[name])

    @property
    def passes(self) -> bool:
        return not self.problem and not self.wrong


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        rows: every case in every dtype.
        habits: named mistakes of behaviour.
        diagnosis: the named mistakes that it behaves like, where numbers are wrong.
        has_gradients: whether any gradient was compared.
    """

    kind: KindName
    rows: tuple[Row, ...]
    habits: tuple[str, ...]
    diagnosis: Diagnosis | None
    has_gradients: bool

    @property
    def conforms(self) -> bool:
        return not self.habits and all(row.passes for row in self.rows)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of all that was recognised."""
        sure = self.diagnosis.mistakes if self.diagnosis and self.diagnosis.is_sure else ()
        return (*self.habits, *sure)


def check(
    function: Callable[..., Any],
    kind: KindName = "op",
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    device: str = "cpu",
    arrays: bool = False,
    gradients: bool = True,
) -> Report:
    """Ask an implementation every question of its kind, in this process and without a time limit.

    Args:
        function: called as `SIGNATURES[kind]` says.
        dtypes: of the inputs; None is float32 and bfloat16, or float64 and float32 of arrays.
        device: where inputs are made.
        arrays: hand in numpy arrays, without gradients.
        gradients: ask for every gradient.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in SIGNATURES:
        raise ValueError(f"no kind {kind!r}; there are: {', '.join(SIGNATURES)}")
    answers: dict[tuple[torch.dtype, str], Answer] = {}
    for way in ways(kind, dtypes, device, arrays, gradients):
        for case in cases_of(kind):
            answers[way.dtype, case.name] = ask(kind, function, case, way)
    return judge(kind, answers)


def ways(
    kind: KindName,
    dtypes: Sequence[torch.dtype] | None = None,
    device: str = "cpu",
    arrays: bool = False,
    gradients: bool = True,
) -> list[Way]:
    """One for each dtype; a start has none."""
    if kind == "start":
        return [Way(torch.float32)]
    usual = (torch.float64, torch.float32) if arrays else (torch.float32, torch.bfloat16)
    return [Way(dtype, device, arrays, gradients) for dtype in dtypes or usual]


def judge(kind: KindName, answers: Answers) -> Report:
    """The report on answers, of whatever process or language."""
    rows = [_row(kind, *key, answer) for key, answer in answers.items()]
    habits = {habit for answer in answers.values() for habit in answer.habits}
    wide = [row for row in rows if row.dtype == torch.float64]
    if any(row.wrong for row in wide) and all(_is_as_good_as_float32(kind, row) for row in wide):
        habits.add("float32_arithmetic")
        diagnosis = _diagnose(kind, [row for row in rows if row not in wide], answers)
    else:  # of a habit the numbers say nothing
        diagnosis = None if habits else _diagnose(kind, rows, answers)
    has_gradients = any(name.startswith("gradient") for row in rows for name in row.errors)
    return Report(kind, tuple(rows), tuple(sorted(habits)), diagnosis, has_gradients)


def assert_conforms(function: Callable[..., Any], kind: KindName = "op", **settings: Any) -> None:
    """For a test of yours: AssertionError with the whole finding where `check` finds a mistake."""
    from attnres.conformance.words import finding

    report = check(function, kind, **settings)
    assert report.conforms, "\n".join(finding(report))


def _row(kind: KindName, dtype: torch.dtype, case: str, answer: Answer) -> Row:
    found = errors(as_written(kind), case, dtype, answer.values)
    return Row(case, dtype, found, answer.problem, answer.trace)


def _is_as_good_as_float32(kind: KindName, row: Row) -> bool:
    found = row.errors.items()
    name = as_written(kind)
    return all(
        error <= allowance(name, row.case, quantity, torch.float32)
        for quantity, (error, _) in found
    )


def _diagnose(kind: KindName, rows: Sequence[Row], answers: Answers) -> Diagnosis | None:
    """By the widest dtype in which a number is wrong."""
    for dtype in DTYPES:
        those = [row for row in rows if row.dtype == dtype]
        if any(row.wrong for row in those):
            right_when_wider = any(row.passes for row in rows if _is_wider(row.dtype, dtype))
            values = {row.case: answers[dtype, row.case].values for row in those if row.errors}
            return diagnose(as_written(kind), dtype, values, right_when_wider)
    return None


def _is_wider(dtype: torch.dtype, other: torch.dtype) -> bool:
    return torch.finfo(dtype).eps < torch.finfo(other).eps


def largest(kind: KindName, case: str, quantity: str) -> float:
    """The largest right number of a quantity."""
    value = exact(as_written(kind), case)[quantity]
    return float(value.abs().amax()) if value.numel() else 0.0
