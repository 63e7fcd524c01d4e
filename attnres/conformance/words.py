"""A report in words and as JSON."""

from typing import Any

import torch

from attnres.conformance.cases import KindName
from attnres.conformance.diagnosis import Diagnosis
from attnres.conformance.mistakes import MISTAKES
from attnres.conformance.report import Report, Row, largest

NEAR = 0.5  # remainder up to which the nearest is worth a word
N_PROBLEMS = 4  # that are shown
NUMBER = {1: "", 2: "two mistakes at once: ", 3: "three mistakes at once: "}


def dtype_word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes_of(report: Report) -> list[torch.dtype]:
    return list(dict.fromkeys(row.dtype for row in report.rows))


def cells(report: Report) -> list[tuple[str, ...]]:
    """A line a case, a column a dtype."""
    cases = dict.fromkeys(row.case for row in report.rows)
    by_key = {(row.case, row.dtype): row for row in report.rows}
    return [
        (case, *(_cell(report.kind, by_key.get((case, dtype))) for dtype in dtypes_of(report)))
        for case in cases
    ]


def finding(report: Report, with_trace: bool = False) -> list[str]:
    """The verdict and its reasons, a paragraph each."""
    if report.conforms:
        return [_praise(report), *_unseen(report)]
    lines = _problems(report, with_trace)
    lines += [_text(name) for name in report.habits]
    if report.diagnosis is not None:
        lines += _diagnosed(report.diagnosis)
    return [f"Does not conform as {report.kind}.", *lines, *_unseen(report)]


def as_json(report: Report) -> dict[str, Any]:
    diagnosis = report.diagnosis
    return {
        "kind": report.kind,
        "conforms": report.conforms,
        "mistakes": [
            {"name": name, "what": MISTAKES[name].what, "mend": MISTAKES[name].mend}
            for name in report.mistakes
        ],
        "nearest": None
        if diagnosis is None
        else {
            "mistakes": diagnosis.mistakes,
            "remainder": diagnosis.remainder,
            "equals": diagnosis.equals,
            "runner_up": {"mistakes": diagnosis.runner_up[0], "remainder": diagnosis.runner_up[1]},
        },
        "has_gradients": report.has_gradients,
        "rows": [_row(row) for row in report.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    errors = {
        name: {"error": _finite(error), "allowed": allowed}
        for name, (error, allowed) in row.errors.items()
    }
    return {
        "case": row.case,
        "dtype": dtype_word(row.dtype),
        "passes": row.passes,
        "errors": errors,
        "problem": row.problem,
    }


def _finite(error: float) -> float | str:
    """JSON has no infinity."""
    return error if error < float("inf") else "not finite"


def _cell(kind: KindName, row: Row | None) -> str:
    if row is None:
        return ""
    if not row.errors:
        return "no answer"
    if not row.wrong:
        return "unfit" if row.problem else "ok"
    name = max(row.wrong, key=lambda name: _relative(kind, row, name))
    return f"{name} {_relative(kind, row, name):.0e}"


def _relative(kind: KindName, row: Row, name: str) -> float:
    return row.errors[name][0] / (largest(kind, row.case, name) or 1.0)


def _praise(report: Report) -> str:
    n_cases = len({row.case for row in report.rows})
    dtypes = " and ".join(map(dtype_word, dtypes_of(report)))
    asked = "outputs and every gradient" if report.has_gradients else "outputs"
    return (
        f"Conforms as {report.kind}: {n_cases} cases in {dtypes}, {asked} within the error budget."
    )


def _unseen(report: Report) -> list[str]:
    if report.has_gradients or report.kind == "start":
        return []
    return ["Gradients were not compared, so that a wrong backward would not be seen."]


def _problems(report: Report, with_trace: bool) -> list[str]:
    """Each problem once, with the cases that have it."""
    rows: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.problem:
            rows.setdefault(row.problem, []).append(row)
    lines = []
    for problem, those in list(rows.items())[:N_PROBLEMS]:
        where = ", ".join(f"{row.case} ({dtype_word(row.dtype)})" for row in those[:3])
        more = f" and {len(those) - 3} more" if len(those) > 3 else ""
        lines.append(f"In {where}{more}: {problem}.")
        if with_trace and those[0].trace:
            lines.append(those[0].trace)
    if len(rows) > N_PROBLEMS:
        lines.append(f"There are {len(rows) - N_PROBLEMS} problems more.")
    return lines


def _diagnosed(diagnosis: Diagnosis) -> list[str]:
    names = " and ".join(diagnosis.mistakes)
    lines: list[str] = []
    if diagnosis.is_rounding:
        lines.append(
            "It is right in a wider dtype, so that this is rounding, up to "
            f"{diagnosis.excess:.1f} times what is allowed."
        )
    if not diagnosis.is_sure:
        return lines or [
            f"No named mistake, nor two or three, explains the numbers{_near(diagnosis)}."
        ]
    lines += [f"It behaves like {NUMBER[len(diagnosis.mistakes)]}{names}{_margin(diagnosis)}."]
    lines += [_text(name) for name in diagnosis.mistakes]
    if diagnosis.equals:
        others = ", ".join(" and ".join(each) for each in diagnosis.equals)
        lines.append(f"From what was answered it cannot be told from: {others}.")
    return lines


def _near(diagnosis: Diagnosis) -> str:
    """The nearest, where it has something in common."""
    if diagnosis.remainder > NEAR:
        return ""
    names = " and ".join(diagnosis.mistakes)
    return f"; the nearest, {names}, leaves {diagnosis.remainder:.0%} of the deviation"


def _margin(diagnosis: Diagnosis) -> str:
    names, remainder = diagnosis.runner_up
    left = f" ({diagnosis.remainder:.0%} of the deviation unexplained"
    if not names:
        return f"{left})"
    return f"{left}; the next, {' and '.join(names)}, leaves {remainder:.0%})"


def _text(name: str) -> str:
    mistake = MISTAKES[name]
    return f"{name}: {mistake.what} Seen by: {mistake.seen_by} To mend: {mistake.mend}"
