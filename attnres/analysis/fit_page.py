"""Laws of arms as tables and as a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnres.analysis.bootstrap import Estimate, Interval, Plan
from attnres.analysis.canvas import DARK, LIGHT, Theme, escape, label_axes, new_panels, save
from attnres.analysis.points import Points
from attnres.analysis.table import MISSING, Column, to_markdown
from attnres.train.run_folder import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["law_figure", "notes", "tables", "to_markdown", "write"]

LABELS_A_PANEL = 4  # at most, of so many letters as a budget has
N_CURVE = 60  # budgets at which a law is drawn


def tables(points: Points, estimates: Sequence[Estimate], plan: Plan) -> list[list[Column]]:
    """The laws, and the compute multipliers where there are any."""
    found = [law_columns(estimates, plan), multiplier_columns(estimates, points.unit)]
    return [columns for columns in found if columns[0].cells]


def law_columns(estimates: Sequence[Estimate], plan: Plan) -> list[Column]:
    """One line an arm: the law's parameters with their intervals."""
    columns = [
        Column(title="Arm", cells=[each.arm for each in estimates], is_number=False),
        Column(title="A", cells=[_text(each.scale, 4) for each in estimates]),
        Column(title="alpha", cells=[_text(each.exponent, 4) for each in estimates]),
    ]
    if plan.form == "floor":
        columns.append(Column(title="E", cells=[_text(each.floor, 3) for each in estimates]))
        none = [f"{each.n_without_floor} of {each.n_refits}" for each in estimates]
        columns.append(Column(title="Refits with E = 0", cells=none))
    failed = [f"{each.n_failed} of {each.n_failed + each.n_refits}" for each in estimates]
    return [*columns, Column(title="Refits failed", cells=failed)]


def multiplier_columns(estimates: Sequence[Estimate], unit: str) -> list[Column]:
    """One line a budget and an arm: the compute that the reference needs for the same loss."""
    found = [(each, budget) for each in estimates for budget in each.multipliers]
    return [
        Column(title="Arm", cells=[each.arm for each, _ in found], is_number=False),
        Column(title=f"C, {unit}", cells=[f"{budget:.4g}" for _, budget in found]),
        Column(title="Loss", cells=[f"{each.law.loss(budget):.4f}" for each, budget in found]),
        Column(
            title="Compute multiplier",
            cells=[_text(each.multipliers[budget], 3) for each, budget in found],
        ),
        Column(title="Refits without one", cells=[str(each.n_beyond[b]) for each, b in found]),
    ]


def notes(
    points: Points, estimates: Sequence[Estimate], reference: str, plan: Plan
) -> Iterator[str]:
    """What must be known to read the tables."""
    law = "L = A C^-alpha" if plan.form == "power" else "L = E + A C^-alpha"
    how = "least squares of log L" if plan.method == "squares" else "Huber's loss of log L"
    yield f"{law} by {how}; C in {points.unit}, L in nats a token."
    yield (
        f"In brackets 95 % of {plan.n_refits} refits, in which were drawn anew: {plan.drawing}; "
        "one drawing serves all arms. The multiplier is the compute that "
        f"{reference} needs for the same loss, over C."
    )
    missed = [f"{each.arm} {_largest_miss(points, each):.1%}" for each in estimates]
    yield f"The loss of a point misses its law by at most: {', '.join(missed)}."
    if points.n_lost:
        n_runs = points.n_points * points.n_seeds
        lost = [f"{arm} {n} of {n_runs}" for arm, n in points.n_lost.items()]
        yield f"Runs that are lacking or diverged, and are in no law: {', '.join(lost)}."
    if points.n_seeds == 1:
        yield "One seed a point: what a seed does is seen only in how far points miss their law."
    untrusted = [each.arm for each in estimates if not each.is_trusted]
    if untrusted:
        yield (
            f"More than one refit in twenty failed, so the intervals are too narrow, of: "
            f"{', '.join(untrusted)}."
        )
    floorless = [each.arm for each in estimates if 2 * each.n_without_floor > each.n_refits]
    if floorless:
        yield f"Most refits find no floor: these points do not show one, of {', '.join(floorless)}."


def apart(budgets: Sequence[float]) -> list[str]:
    """A label for each rising budget, empty where it would touch the next on a log axis."""
    least = math.log(budgets[-1] / budgets[0]) / LABELS_A_PANEL
    labels, following = [], math.inf
    for budget in reversed(budgets):
        is_shown = math.log(following / budget) >= least
        labels.append(f"{budget:.3g}" if is_shown else "")
        following = budget if is_shown else following
    return labels[::-1]


def law_figure(
    points: Points, estimates: Sequence[Estimate], reference: str, theme: Theme
) -> Figure:
    """Losses and laws over compute, and beside them the multipliers with their intervals."""
    from matplotlib.ticker import NullLocator

    figure, (losses, ratios) = new_panels(theme, n_columns=2)
    for i, each in enumerate(estimates):
        color = theme.colors[i % len(theme.colors)]
        budget_P, loss_P = points.of(each.arm)
        curve = np.geomspace(budget_P.min(), budget_P.max(), N_CURVE)
        losses.plot(curve, [each.law.loss(budget) for budget in curve], color=color, linewidth=1.6)
        losses.plot(
            budget_P, loss_P, "osD^vP"[i % 6], color=color, markersize=5, label=escape(each.arm)
        )
        shift = 1 + 0.03 * (i - len(estimates) / 2)  # so that intervals stand beside each other
        for budget, found in each.multipliers.items():
            ratios.errorbar(
                budget * shift,
                found.value,
                yerr=[[max(found.value - found.low, 0)], [max(found.high - found.value, 0)]],
                fmt="osD^vP"[i % 6],
                color=color,
                capsize=3,
                markersize=5,
            )
    ratios.axhline(1, color=theme.ink, linewidth=0.9)
    budgets = [*points.of(reference)[0]]
    for axes in (losses, ratios):
        axes.set_xscale("log")
        axes.set_xticks(budgets, apart(budgets))
        axes.xaxis.set_minor_locator(NullLocator())
    losses.set_yscale("log")
    losses.yaxis.set_minor_formatter("{x:.3g}")
    label_axes(losses, f"C ({points.unit})", "loss (nats a token)", theme)
    label_axes(ratios, f"C ({points.unit})", f"compute {escape(reference)} needs, over C", theme)
    figure.legend(loc="outside upper left", ncols=6, frameon=False, labelcolor=theme.ink)
    return figure


def write(
    folder: Path, page: str, points: Points, estimates: Sequence[Estimate], reference: str
) -> None:
    """The page, and the figure in two themes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "fit.md", page)
    for name, theme in (("fit", LIGHT), ("fit-dark", DARK)):
        save(law_figure(points, estimates, reference, theme), folder / f"{name}.png")


def _largest_miss(points: Points, each: Estimate) -> float:
    """Over points, as a share of the loss: beyond noise where the law is not that of the points."""
    budget_P, loss_P = points.of(each.arm)
    law_P = np.array([each.law.loss(budget) for budget in budget_P])
    return float(np.abs(loss_P / law_P - 1).max())


def _text(found: Interval, n_digits: int) -> str:
    if math.isnan(found.low):
        return _number(found.value, n_digits)
    low, high = (_number(x, n_digits) for x in (found.low, found.high))
    return f"{_number(found.value, n_digits)} ({low} to {high})"


def _number(x: float, n_digits: int) -> str:
    if not math.isfinite(x):
        return MISSING if math.isnan(x) else "\N{INFINITY}"
    return f"{x:.{n_digits}f}" if 1e-2 <= abs(x) < 1e3 or x == 0 else f"{x:.{n_digits}g}"
