"""Laws of several arms with intervals, and how much compute each saves against a reference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnres.analysis.fit import Form, Law, Method, fit, has_no_floor, multiplier
from attnres.analysis.points import Drawing, Points

CONFIDENCE = 0.95
N_REFITS = 1000
LEAST_REFITS = 40  # of which each end of an interval leaves out one


class Interval(NamedTuple):
    """A figure of the points as they are, and the percentiles of it over refits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The law of one arm. None is what there is no reference, or no refit, for."""

    arm: str
    law: Law
    scale: Interval  # A
    exponent: Interval  # alpha
    floor: Interval  # E
    multipliers: Mapping[float, Interval]  # by budget; empty for the reference
    n_refits: int  # that gave a law
    n_failed: int  # that gave none, and are in no interval
    n_without_floor: int  # of the refits, where a floor was asked for and the best was 0
    n_beyond: Mapping[float, int]  # by budget, refits whose multiplier is not finite

    @property
    def is_trusted(self) -> bool:
        """Whether at most one refit in twenty failed: percentiles leave the failed out."""
        return 20 * self.n_failed <= self.n_refits + self.n_failed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How laws are fitted and refitted; see `fit` and `Drawing`."""

    form: Form = "power"
    method: Method = "squares"
    drawing: Drawing = field(default_factory=lambda: Drawing(points=True, seeds=True))
    n_refits: int = N_REFITS
    seed: int = 0


def estimate(
    points: Points, reference: str, budgets: Sequence[float], plan: Plan | None = None
) -> list[Estimate]:
    """The law of every arm, and its compute multiplier against `reference` at each budget.

    One drawing serves all arms, so that what moves them alike moves no multiplier.

    Raises:
        ValueError: no such reference, a law that the points do not determine.
    """
    plan = plan or Plan()
    if reference not in points.losses:
        raise ValueError(f"no arm {reference!r}; there are: {', '.join(points.losses)}")
    if plan.n_refits < LEAST_REFITS:
        raise ValueError(
            f"percentiles need {LEAST_REFITS} refits at the least, got {plan.n_refits}"
        )
    if not all(0 < budget < math.inf for budget in budgets):
        raise ValueError(f"budgets must be positive and finite, got {list(budgets)}")
    laws = {arm: _fit(points, arm, plan) for arm in points.losses}
    rng = np.random.default_rng(plan.seed)
    refits = [_refit(points, laws, plan, rng) for _ in range(plan.n_refits)]
    return [_estimate(arm, laws, refits, reference, budgets, plan) for arm in laws]


def _fit(points: Points, arm: str, plan: Plan) -> Law:
    try:
        return fit(*points.of(arm), plan.form, plan.method)
    except ValueError as error:
        raise ValueError(f"arm {arm!r}: {error}") from error


def _refit(
    points: Points, laws: Mapping[str, Law], plan: Plan, rng: np.random.Generator
) -> dict[str, Law]:
    """The laws of those arms that have one in this drawing."""
    drawn, found = plan.drawing.draw(points, laws, rng), {}
    for arm in laws:
        try:
            found[arm] = fit(*drawn.of(arm), plan.form, plan.method)
        except ValueError:  # counted
            continue
    return found


def _estimate(
    arm: str,
    laws: Mapping[str, Law],
    refits: Sequence[Mapping[str, Law]],
    reference: str,
    budgets: Sequence[float],
    plan: Plan,
) -> Estimate:
    own = [found[arm] for found in refits if arm in found]
    pairs = [(found[arm], found[reference]) for found in refits if {arm, reference} <= found.keys()]
    multipliers, n_beyond = {}, {}
    for budget in budgets if arm != reference else ():
        ratios = np.array([multiplier(law, other, budget) for law, other in pairs])
        n_beyond[budget] = int((~np.isfinite(ratios)).sum())
        multipliers[budget] = _interval(multiplier(laws[arm], laws[reference], budget), ratios)
    return Estimate(
        arm=arm,
        law=laws[arm],
        scale=_interval(laws[arm].scale, [law.scale for law in own]),
        exponent=_interval(laws[arm].exponent, [law.exponent for law in own]),
        floor=_interval(laws[arm].floor, [law.floor for law in own]),
        multipliers=multipliers,
        n_refits=len(own),
        n_failed=len(refits) - len(own),
        n_without_floor=sum(map(has_no_floor, own)) if plan.form == "floor" else 0,
        n_beyond=n_beyond,
    )


def _interval(value: float, values: Sequence[float] | np.ndarray) -> Interval:
    """Percentiles; an infinite value counts as larger than all others."""
    if not len(values):
        return Interval(value, np.nan, np.nan)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail), method="inverted_cdf")
    return Interval(value, float(low), float(high))
