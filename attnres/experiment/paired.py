"""Differences paired by seed, and how far they can be trusted."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
ENOUGH = 3  # pairs; the interval of two is 6 times as wide as that of many


class Difference(NamedTuple):
    """Mean of paired differences, with Student's interval around it."""

    mean: float
    half_width: float | None  # None where one pair says nothing of the spread
    n_pairs: int


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """Of `values` less `reference`, pair by pair: what a seed does to both drops out."""
    differences = [a - b for a, b in zip(values, reference, strict=True)]
    n, mean = len(differences), statistics.fmean(differences)
    if n < 2:
        return Difference(mean, None, n)
    error = statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, student_quantile(CONFIDENCE, n - 1) * error, n)


def student_quantile(confidence: float, n_free: int) -> float:
    """The t that |T| stays below with this probability, for `n_free` degrees of freedom."""
    low, high = 0.0, 1.0
    while student_within(high, n_free) < confidence:
        low, high = high, 2 * high
    for _ in range(60):  # halvings: to the last bit
        middle = (low + high) / 2
        if student_within(middle, n_free) < confidence:
            low = middle
        else:
            high = middle
    return high


def student_within(t: float, n_free: int) -> float:
    """P(|T| < t), in closed form: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(n_free))
    is_odd = n_free % 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if n_free > 1 else 0.0
    for power in range(is_odd, n_free - 2, 2):
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
        total += term
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if is_odd else within
