"""Interleaved timing: what is compared is timed in the same rounds, and compared within each."""

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

import torch

Case = Callable[[], object]
Samples = dict[str, list[float]]  # seconds a call, one a round

SAMPLE_S = 0.005  # a sample repeats its call until it takes about as long
MOST_CALLS = 1000
WARM_S = 2.0  # a call as long warms its own caches
LEAST_ROUNDS = 3


class Timing(NamedTuple):
    """How a sample is taken."""

    n_rounds: int
    budget_s: float  # of all rounds of one group of cases; three rounds are always taken
    least_rounds: int = LEAST_ROUNDS

    @property
    def clock(self) -> Callable[[], float]:
        """Of the process on one thread, which other processes disturb less; else of the wall."""
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    @property
    def clock_name(self) -> str:
        return "process CPU time" if torch.get_num_threads() == 1 else "wall time"


class Ratio(NamedTuple):
    """Of the median round, and of the lowest and the highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_short(self.median)} [{_short(self.low)}, {_short(self.high)}]"


def measure(cases: Mapping[str, Case], timing: Timing) -> Samples:
    """Seconds a call of every case, in each round.

    Every sample follows one untimed call of its own case. Odd rounds run backwards, so that no case
    always follows the same one.
    """
    end = time.monotonic() + timing.budget_s
    n_calls = {name: _calls_in_a_sample(case) for name, case in cases.items()}
    samples: Samples = {name: [] for name in cases}
    for i in range(timing.n_rounds):
        if i >= timing.least_rounds and time.monotonic() > end:
            break
        for name in list(cases)[:: -1 if i % 2 else 1]:
            samples[name].append(_sample(cases[name], n_calls[name], timing.clock))
    return samples


def ratio(numerator: list[float], denominator: list[float]) -> Ratio:
    """The two are paired: a round's noise is in both."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def _calls_in_a_sample(case: Case) -> int:
    """0 for a case that needs no untimed call before it."""
    case()  # may compile
    seconds = _seconds(case)
    if seconds > WARM_S:
        return 0
    return max(1, min(MOST_CALLS, math.ceil(SAMPLE_S / max(seconds, 1e-9))))


def _seconds(case: Case) -> float:
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def _sample(case: Case, n_calls: int, clock: Callable[[], float]) -> float:
    if n_calls:
        case()
    start = clock()
    for _ in range(max(n_calls, 1)):
        case()
    return (clock() - start) / max(n_calls, 1)


def _short(x: float) -> str:
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def summary(samples: list[float]) -> dict[str, Any]:
    """For JSON."""
    return {"median_s": median(samples), "min_s": min(samples), "samples_s": samples}
