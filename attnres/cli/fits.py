"""The command that fits loss against compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnres.analysis.fit import Form, Method
from attnres.arguments import parse

if TYPE_CHECKING:
    from attnres.analysis.bootstrap import Plan
    from attnres.analysis.points import Points


def fit(arguments: list[str]) -> None:
    """Fit loss against compute, arm by arm, with intervals and compute multipliers.

    attnres fit rows.csv --at 1e15        attnres fit --paper

    ROWS has the columns arm, budget, loss and, where there are several, seed. Intervals are over
    refits with budgets, and the seeds at each, drawn anew; with --residuals over refits in which
    what the points miss the law by is drawn anew, which suits few points. --paper takes the table
    of arXiv:2603.15031 and says beside it what the paper prints.
    """
    import tyro

    @dataclass(frozen=True)
    class Fit:
        rows: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")] = None
        """a file of comma-separated values"""
        paper: bool = False
        """the paper's table in place of rows"""
        reference: str = "standard"
        """the arm whose compute the multiplier counts"""
        form: Form = "power"
        """A C^-alpha, or with a floor E + A C^-alpha"""
        method: Method = "squares"
        """least squares of log L, or Huber's loss"""
        at: tuple[float, ...] = ()
        """budgets of the multiplier; all of the reference, if not given"""
        unit: str = "FLOPs"
        """of the budgets"""
        residuals: bool = False
        """draw residuals, not budgets"""
        rounding: float = 0.0
        """unit of the last digit of the losses, where they are rounded"""
        refits: int = 1000
        """how many"""
        out: Path | None = None
        """a folder for the page and the figure"""

    chosen = parse(Fit, "fit", fit, arguments)
    if (chosen.rows is None) == (not chosen.paper):
        raise ValueError("give either a file of rows or --paper")
    from attnres.analysis import paper
    from attnres.analysis.bootstrap import Plan
    from attnres.analysis.points import Drawing, read_points

    plan = Plan(form=chosen.form, method=chosen.method, n_refits=chosen.refits)
    if chosen.rows is None:
        at = chosen.at or (float(paper.BUDGET_P[0]), paper.CLAIMED[1])
        drawings = (Drawing(rounding=paper.ROUNDING), paper.DRAWING)
        _show(paper.points(), paper.REFERENCE, at, [replace(plan, drawing=d) for d in drawings],
              [*paper.words()], chosen.out)  # fmt: skip
        return
    points = read_points(chosen.rows, chosen.unit)
    drawing = Drawing(
        points=not chosen.residuals,
        residuals=chosen.residuals,
        seeds=points.n_seeds > 1,
        rounding=chosen.rounding,
    )
    known = points.budgets.get(chosen.reference, ())
    at = chosen.at or tuple(map(float, known))
    _show(points, chosen.reference, at, [replace(plan, drawing=drawing)], [], chosen.out)


def _show(
    points: "Points",
    reference: str,
    at: Sequence[float],
    plans: "Sequence[Plan]",
    words: Sequence[str],
    out: Path | None,
) -> None:
    """Tables of each plan and the words on the terminal, and as a page with the last's figure."""
    from rich.console import Console

    from attnres.analysis import fit_page
    from attnres.analysis.bootstrap import estimate
    from attnres.analysis.table import rich_columns

    console, page = Console(), list[str]()
    estimates = []
    for plan in plans:
        estimates = estimate(points, reference, at, plan)
        for columns in fit_page.tables(points, estimates, plan):
            console.print(rich_columns(columns))
            page.append(fit_page.to_markdown(columns))
        page.append("\n".join(fit_page.notes(points, estimates, reference, plan)) + "\n")
        console.print(page[-1], markup=False, highlight=False)
    if words:
        page.append("\n".join(words) + "\n")
        console.print(page[-1], markup=False, highlight=False)
    if out is not None:
        fit_page.write(out, "\n".join(page), points, estimates, reference)
        print(f"page: {out / 'fit.md'}")
