"""What a benchmark hands over: tables on the screen, goals met or not, and JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rounds import Ratio


class Goal(NamedTuple):
    """A bound on a figure; no figure where its case was not measured."""

    what: str
    limit: float
    figure: float | None
    at_least: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "met": self.met}


def worst(figures: Iterable[float], at_least: bool = False) -> float | None:
    """The figure by which a goal over several cases is judged; None where there is no case."""
    figures = list(figures)
    if not figures:
        return None
    return min(figures) if at_least else max(figures)


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print(f"\n{title}\n")
    for i, line in enumerate(lines):
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join([line[0].ljust(widths[0]), *others]).rstrip() if first else "")
        if i == 0:
            print("  ".join("-" * width for width in widths))


def print_goals(goals: Iterable[Goal]) -> None:
    words = {True: "met", False: "not met", None: "not measured"}
    rows = []
    for goal in goals:
        sign = ">=" if goal.at_least else "<="
        figure = "-" if goal.figure is None else f"{goal.figure:.3g}{goal.unit}"
        rows.append((goal.what, f"{sign} {goal.limit:g}{goal.unit}", figure, words[goal.met]))
    print_table("Goals", ("what", "goal", "figure", ""), rows)


def write_json(file: Path | None, result: dict[str, Any], goals: Iterable[Goal]) -> None:
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {**result, "goals": [goal.to_json() for goal in goals]}
    file.write_text(json.dumps(content, indent=1, default=str) + "\n")
    print(f"\nwritten: {file}")


def print_steps(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Residual paths by themselves, over the standard step, and of whole steps where timed."""
    head = ("", "path, ms", "added to the step", "whole step over standard")
    cells = [
        (
            row["who"],
            f"{row['path']['median_s'] * 1e3:.4g}",
            _percent(row["added"]),
            str(row["step_ratio"] or "-"),
        )
        for row in rows
    ]
    print_table(title, head, cells)


def _percent(share: Ratio) -> str:
    return f"{share.median:+.1%} [{share.low:+.1%}, {share.high:+.1%}]"
