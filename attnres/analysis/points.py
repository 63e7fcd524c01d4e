"""Losses of arms at several budgets, and how they are drawn anew for intervals.

P points, one budget each; S seeds.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnres.analysis.fit import Law

COLUMNS = ("arm", "budget", "loss")  # and, where there are several, seed


@dataclass(frozen=True, kw_only=True)
class Points:
    """By arm; all arms have the same points and seeds, which are drawn together.

    Args:
        budgets: C of each point, [P].
        losses: nats a token, [P, S]; NaN where there is no run.
        unit: of the budgets.
    """

    budgets: Mapping[str, np.ndarray]
    losses: Mapping[str, np.ndarray]
    unit: str = "FLOPs"

    def __post_init__(self):
        shapes = {losses_PS.shape for losses_PS in self.losses.values()}
        if len(shapes) != 1 or self.budgets.keys() != self.losses.keys():
            raise ValueError(f"arms differ in points or seeds: {sorted(shapes)}")

    def of(self, arm: str) -> tuple[np.ndarray, np.ndarray]:
        """Budget and mean loss over seeds of the points that an arm has."""
        losses_PS = self.losses[arm]
        found_P = np.isfinite(losses_PS).any(axis=1)
        mean_P = np.nanmean(losses_PS[found_P], axis=1) if found_P.any() else np.empty(0)
        return self.budgets[arm][found_P], mean_P

    @property
    def n_lost(self) -> dict[str, int]:
        """By arm, runs that it lacks or that diverged; without those that lack none."""
        lost = {arm: int(np.isnan(losses_PS).sum()) for arm, losses_PS in self.losses.items()}
        return {arm: n for arm, n in lost.items() if n}

    @property
    def n_points(self) -> int:
        return next(iter(self.losses.values())).shape[0]

    @property
    def n_seeds(self) -> int:
        return next(iter(self.losses.values())).shape[1]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn at random for one refit, the same for all arms but for the rounding.

    Args:
        points: the budgets, with replacement.
        seeds: those of each budget, with replacement.
        residuals: what the points miss the laws by, with replacement, instead of the points
            themselves: every budget is then in every refit.
        rounding: unit of the last digit of the losses; what it hid is drawn evenly.
    """

    points: bool = False
    seeds: bool = False
    residuals: bool = False
    rounding: float = 0.0

    def __post_init__(self):
        if not 0 <= self.rounding < math.inf:
            raise ValueError(f"rounding must be a finite number from 0 on, got {self.rounding}")

    def __str__(self) -> str:
        names = [name for name in ("points", "seeds", "residuals") if getattr(self, name)]
        names += [f"rounding to {self.rounding:g}"] if self.rounding else []
        return ", ".join(names) or "nothing"

    def draw(self, points: Points, laws: Mapping[str, Law], rng: np.random.Generator) -> Points:
        """`laws` are those of the points, of two parameters or three."""
        if self.seeds:
            points = _draw_seeds(points, rng)
        if self.residuals:
            points = _draw_residuals(points, laws, rng)
        if self.points:
            points = _draw_points(points, rng)
        if self.rounding:
            losses = {
                arm: losses_PS + rng.uniform(-0.5, 0.5, losses_PS.shape) * self.rounding
                for arm, losses_PS in points.losses.items()
            }
            points = replace(points, losses=losses)
        return points


def read_points(file: Path, unit: str = "FLOPs") -> Points:
    """Rows `arm,budget,loss` and, where there are several, `seed`; points in order of budget.

    The loss of a run that diverged is infinite.

    Points of the same place in the order of budgets belong together: an arm may need a little more
    compute than another at the same size.
    """
    cells: dict[str, dict[float, dict[str, float]]] = {}
    with file.open(encoding="utf-8-sig", newline="") as stream:  # a spreadsheet begins with a mark
        reader = csv.DictReader(stream)
        lacking = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if lacking:
            raise ValueError(f"{file} has no column {', '.join(lacking)}")
        for number, row in enumerate(reader, start=2):
            try:
                budget, loss = float(row["budget"]), float(row["loss"])
            except (TypeError, ValueError) as error:
                raise ValueError(f"line {number} of {file} is no point: {error}") from error
            if not (0 < budget < math.inf and loss > 0):
                raise ValueError(
                    f"line {number} of {file} is no point: budget {budget:g} and loss {loss:g} "
                    "must be positive"
                )
            at = cells.setdefault(row["arm"], {}).setdefault(budget, {})
            if at.setdefault(row.get("seed") or "0", loss) != loss:
                raise ValueError(f"line {number} of {file} repeats a seed at the same budget")
    if not cells:
        raise ValueError(f"{file} holds no points")
    return gather(cells, unit)


def gather(cells: Mapping[str, Mapping[float, Mapping[str, float]]], unit: str) -> Points:
    """Points from losses by arm, budget and seed; infinite losses are no runs."""
    n_points = {len(by_budget) for by_budget in cells.values()}
    if len(n_points) != 1:
        counts = {arm: len(by_budget) for arm, by_budget in cells.items()}
        raise ValueError(f"arms differ in their number of budgets: {counts}")
    every = {seed for by_budget in cells.values() for at in by_budget.values() for seed in at}
    budgets, losses = {}, {}
    for arm, by_budget in cells.items():
        budgets[arm] = np.array(sorted(by_budget))
        found_PS = [
            [by_budget[budget].get(seed, np.nan) for seed in sorted(every)]
            for budget in sorted(by_budget)
        ]
        losses[arm] = np.where(np.isfinite(found_PS), found_PS, np.nan)
    return Points(budgets=budgets, losses=losses, unit=unit)


def _draw_seeds(points: Points, rng: np.random.Generator) -> Points:
    P, S = points.n_points, points.n_seeds
    drawn_PS = rng.integers(S, size=(P, S))
    losses = {
        arm: np.take_along_axis(losses_PS, drawn_PS, axis=1)
        for arm, losses_PS in points.losses.items()
    }
    return replace(points, losses=losses)


def _draw_points(points: Points, rng: np.random.Generator) -> Points:
    drawn_P = rng.integers(points.n_points, size=points.n_points)
    return replace(
        points,
        budgets={arm: budget_P[drawn_P] for arm, budget_P in points.budgets.items()},
        losses={arm: losses_PS[drawn_P] for arm, losses_PS in points.losses.items()},
    )


def _draw_residuals(points: Points, laws: Mapping[str, Law], rng: np.random.Generator) -> Points:
    """Each arm's law, times what it missed at points drawn for all arms together.

    Residuals of a fit are smaller than the noise: by the root of the free points over all.
    """
    P = points.n_points
    drawn_P = rng.integers(P, size=P)
    losses = {}
    for arm, law in laws.items():
        n_parameters = 3 if law.floor else 2
        law_P = np.array([law.loss(budget) for budget in points.budgets[arm]])
        missed_PS = np.log(points.losses[arm] / law_P[:, None])
        wider = np.sqrt(P / (P - n_parameters))
        losses[arm] = law_P[:, None] * np.exp(wider * missed_PS[drawn_P])
    return replace(points, losses=losses)
