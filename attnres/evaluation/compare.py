"""What one model has over another in the same questions: paired, with an interval and a test."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnres.evaluation.scored import Scored
from attnres.experiment import paired as paired_runs

CONFIDENCE = 0.95
N_RESAMPLES = 10_000
SEED = 0  # of the resampling
CHUNK = 1 << 22  # questions drawn at once


class Difference(NamedTuple):
    """Mean of paired differences, and how far it can be trusted.

    `p` is of the exact sign test: how likely as uneven a split of better and worse is where both
    are as likely. For scores of 0 and 1 that is McNemar's exact test.
    """

    mean: float
    low: float  # of the interval of 95 %
    high: float
    n_higher: int  # questions
    n_lower: int
    n_same: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of a task, two models."""

    task: str
    metric: str
    is_chosen: bool  # the task's own metric, not one beside it
    higher_is_better: bool
    n_questions: int
    score: float
    against: float
    difference: Difference


@dataclass(frozen=True, kw_only=True)
class OverPairs:
    """One metric of a task, over several pairs of models."""

    task: str
    metric: str
    higher_is_better: bool
    score: float  # means over pairs
    against: float
    difference: paired_runs.Difference


def compare(ours: Scored, theirs: Scored) -> list[Comparison]:
    """`ours` less `theirs` by each metric; ValueError where they were not asked the same."""
    _check(ours, theirs)
    return [
        Comparison(
            task=ours.task,
            metric=metric,
            is_chosen=metric == ours.metric,
            higher_is_better=ours.higher_is_better[metric],
            n_questions=len(ours.questions),
            score=ours.mean(metric),
            against=theirs.mean(metric),
            difference=paired(ours.values[metric], theirs.values[metric]),
        )
        for metric in (ours.metric, *(name for name in ours.values if name != ours.metric))
    ]


def over_pairs(found: Sequence[Sequence[Comparison]]) -> list[OverPairs]:
    """Each task and metric that all pairs have, as of one seed of training each."""
    by_key = [{(each.task, each.metric): each for each in pair} for pair in found]
    together = []
    for key in by_key[0]:
        if all(key in pair for pair in by_key):
            own = [pair[key] for pair in by_key]
            scores, others = [each.score for each in own], [each.against for each in own]
            together.append(
                OverPairs(
                    task=own[0].task,
                    metric=own[0].metric,
                    higher_is_better=own[0].higher_is_better,
                    score=statistics.fmean(scores),
                    against=statistics.fmean(others),
                    difference=paired_runs.paired_difference(scores, others),
                )
            )
    return together


def paired(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """Of `values` less `reference`, question by question."""
    gap_N = np.asarray(values, float) - np.asarray(reference, float)
    n_higher, n_lower = int((gap_N > 0).sum()), int((gap_N < 0).sum())
    is_binary = {*values, *reference} <= {0.0, 1.0}
    low, high = _matched(n_higher, n_lower, len(gap_N)) if is_binary else _resampled(gap_N)
    n_same = len(gap_N) - n_higher - n_lower
    p = sign_test(n_higher, n_lower)
    return Difference(float(gap_N.mean()), low, high, n_higher, n_lower, n_same, p)


def sign_test(n_higher: int, n_lower: int) -> float:
    """Two-sided, exact; 1 where no question tells the two apart."""
    n, count, tail = n_higher + n_lower, 1, 0
    for k in range(min(n_higher, n_lower) + 1):
        tail += count
        count = count * (n - k) // (k + 1)  # ways to choose k + 1 of n
    return min(1.0, 2 * tail / 2**n)


def overall(found: Sequence[Comparison]) -> tuple[float, float, float] | None:
    """Mean difference over tasks scored from 0 to 1, each counted alike, and its interval.

    The tasks are taken as they are: it says nothing of other tasks. None for fewer than two.
    """
    alike = [each for each in found if each.is_chosen and each.higher_is_better]
    alike = [each for each in alike if all(0 <= x <= 1 for x in (each.score, each.against))]
    if len(alike) < 2:
        return None
    mean = statistics.fmean(each.difference.mean for each in alike)
    squares = [((d.high - d.low) / 2) ** 2 for d in (each.difference for each in alike)]
    half = math.sqrt(sum(squares)) / len(alike)
    return mean, mean - half, mean + half


def overall_over_pairs(
    found: Sequence[Sequence[Comparison]],
) -> paired_runs.Difference | None:
    """Mean of `overall` over pairs, by the tasks that all have; Student's interval over pairs."""
    shared = set.intersection(*({each.task for each in pair} for pair in found))
    means = [overall([each for each in pair if each.task in shared]) for pair in found]
    gains = [mean[0] for mean in means if mean is not None]
    if len(gains) < len(found):
        return None
    return paired_runs.paired_difference(gains, [0.0] * len(gains))


def _matched(n_higher: int, n_lower: int, n: int) -> tuple[float, float]:
    """Interval for matched proportions: Wald's with half a count in each cell.

    Agresti and Min, Statistics in Medicine 24 (2005): it stays wide where no pair differs.
    """
    higher, lower, total = n_higher + 0.5, n_lower + 0.5, n + 2
    mean = (higher - lower) / total
    half = _normal_quantile() * math.sqrt((higher + lower) / total - mean**2) / math.sqrt(total)
    return mean - half, mean + half


def _resampled(gap_N: np.ndarray) -> tuple[float, float]:
    """Percentiles of the mean over questions drawn anew."""
    rng, means = np.random.default_rng(SEED), list[np.ndarray]()
    n, rows = len(gap_N), max(1, CHUNK // len(gap_N))
    for first in range(0, N_RESAMPLES, rows):
        shape = (min(rows, N_RESAMPLES - first), n)
        means.append(gap_N[rng.integers(n, size=shape)].mean(axis=1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), (tail, 1 - tail))
    return float(low), float(high)


def _normal_quantile() -> float:
    return statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def _check(ours: Scored, theirs: Scored) -> None:
    for name, value in ours.settings.items():
        if theirs.settings.get(name) != value:
            raise ValueError(
                f"{ours.task} was run with {name} {value!r} and {theirs.settings.get(name)!r}"
            )
    if list(ours.questions) != list(theirs.questions):
        raise ValueError(f"{ours.task} has asked the two models other questions")
    if ours.values.keys() != theirs.values.keys():
        raise ValueError(f"{ours.task} has other metrics of the two models")
