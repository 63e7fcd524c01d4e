"""Which named mistake does an implementation behave like?

A candidate is a wrong implementation, asked the same questions in the same dtype. What of the
deviation from the right answer it leaves unexplained is, for each quantity that either of the two
gets wrong,

    min(1, |answer - candidate| / |answer - right|)

or 1 where only the candidate is wrong; the mean over all quantities is its *remainder*: 0 is the
very same mistake, 1 nothing in common. Pairs and triples of mistakes are tried where one is not
enough: over a few cases first, then the nearest of them over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from attnres.conformance.answers import Way, ask_once
from attnres.conformance.budget import allowance, as_written, case_named, comparable, right_value
from attnres.conformance.calling import UnfitError
from attnres.conformance.cases import KindName
from attnres.conformance.mistake import Mistake
from attnres.conformance.mistakes import MISTAKES, PRECISION, combine, mistakes_of

Values = dict[str, dict[str, Tensor]]  # of each case: its quantities
Names = tuple[str, ...]
SAME = 0.04  # remainder up to which it is that mistake
ALIKE = 0.01  # difference of two remainders that says nothing
ROUNDED = 0.5  # the same where only rounding differs, which no two codes do alike
N_KEPT = 24  # candidates that go from the few cases to all
FEW = ("odd_width", "large_eps", "full_some_eps", "block_odd")


@dataclass(frozen=True)
class Diagnosis:
    """What an implementation behaves like.

    Attributes:
        mistakes: of the nearest candidate.
        remainder: what it leaves unexplained, from 0 to 1.
        equals: others of as many mistakes that explain as much and cannot be told apart here.
        runner_up: the nearest that does not explain it, and its remainder.
        is_rounding: in a wider dtype nothing was wrong.
        excess: the largest error over what is allowed.
    """

    mistakes: Names
    remainder: float
    equals: tuple[Names, ...] = ()
    runner_up: tuple[Names, float] = ((), 1.0)
    is_rounding: bool = False
    excess: float = float("inf")

    @property
    def is_sure(self) -> bool:
        return self.remainder <= (ROUNDED if self.is_rounding else SAME)


class Deviations:
    """An implementation's answers as one row of numbers, beside the right ones."""

    def __init__(self, kind: KindName, dtype: torch.dtype, answered: Values):
        self.kind: KindName = as_written(kind)
        self.dtype = dtype
        self.keys = tuple(
            (case, quantity)
            for case, values in answered.items()
            for quantity, value in values.items()
            if value.numel()
        )
        theirs = [comparable(self.kind, *key, answered[key[0]][key[1]]) for key in self.keys]
        self.starts = np.cumsum([0, *(x.numel() for x in theirs[:-1])])
        self.theirs = _row(theirs)
        self.right = _row([right_value(self.kind, *key) for key in self.keys])
        self.allowed = np.array([allowance(self.kind, *key, dtype) for key in self.keys])
        self.error = self._largest(self.theirs, self.right)
        self.fails = self.error > self.allowed

    def remainder(self, names: Names) -> float:
        """What these mistakes together leave unexplained."""
        candidate = _candidate_row(self.kind, self.dtype, names, self.keys)
        its_fails = self._largest(candidate, self.right) > self.allowed
        left = self._largest(self.theirs, candidate)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(left == 0, 0.0, np.minimum(1.0, left / self.error))
        share = np.where(self.fails, np.nan_to_num(share, nan=1.0), 1.0)
        counted = self.fails | its_fails
        return float(share[counted].mean()) if counted.any() else 1.0

    def excess(self) -> float:
        """The largest error over what is allowed."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float((self.error / self.allowed)[self.fails].max())

    def _largest(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        return np.maximum.reduceat(
            np.nan_to_num(difference, nan=np.inf, posinf=np.inf), self.starts
        )


def diagnose(
    kind: KindName, dtype: torch.dtype, answered: Values, right_when_wider: bool = False
) -> Diagnosis | None:
    """The nearest mistake, or several at once; None where no number is wrong.

    Args:
        answered: what was answered, of each case.
        right_when_wider: in a wider dtype nothing was wrong, so that rounding is to blame.
    """
    deviations = Deviations(kind, dtype, answered)
    if not deviations.fails.any():
        return None
    names = [x.name for x in mistakes_of(kind)]
    if right_when_wider:
        names = [name for name in names if name in PRECISION]
    ranked = _rank(deviations, [(name,) for name in names])
    if right_when_wider:
        excess = deviations.excess()
        return replace(_diagnosis(ranked), is_rounding=True, excess=excess, equals=())
    if ranked[0][1] <= SAME:
        return _diagnosis(ranked)
    few = _few(kind, dtype, answered) or deviations
    pairs = _nearest(few, list(combinations(names, 2)))
    ranked = _sorted([*ranked, *_rank(deviations, pairs)])
    if ranked[0][1] > SAME:
        starts = [each for each, _ in ranked if len(each) == 2][:3]
        triples = {tuple(sorted((*pair, x))) for pair in starts for x in names if x not in pair}
        ranked = _sorted([*ranked, *_rank(deviations, _nearest(few, sorted(triples)))])
    return _diagnosis(ranked)


@cache
def candidate_answer(
    kind: KindName, case: str, dtype: torch.dtype, names: Names, gradients: bool
) -> dict[str, Tensor]:
    """What the implementation that makes these mistakes answers, NaN where it fails."""
    asked, function = case_named(kind, case), combine(kind, *_mistakes(names))
    assert function is not None
    try:
        values = ask_once(kind, function, asked, Way(dtype, gradients=gradients)).values
    except (UnfitError, RuntimeError):
        values = {}
    shapes = {f"gradient of {name}": x.shape for name, x in asked.inputs.items()}
    shapes |= dict.fromkeys(("mix", "reads"), asked.upstream.shape)
    return {name: torch.full(shape, torch.nan) for name, shape in shapes.items()} | values


@lru_cache(maxsize=4096)
def _candidate_row(
    kind: KindName, dtype: torch.dtype, names: Names, keys: tuple[tuple[str, str], ...]
) -> np.ndarray:
    gradients = any(quantity.startswith("gradient") for _, quantity in keys)
    answers = {case: candidate_answer(kind, case, dtype, names, gradients) for case, _ in keys}
    return _row(
        [comparable(kind, case, quantity, answers[case][quantity]) for case, quantity in keys]
    )


def _few(kind: KindName, dtype: torch.dtype, answered: Values) -> Deviations | None:
    """Answers without gradients to the few cases of the kind; None where none was wrong."""
    chosen = {
        case: {name: x for name, x in values.items() if not name.startswith("gradient")}
        for case, values in answered.items()
        if case in FEW
    }
    if not chosen:
        return None
    few = Deviations(kind, dtype, chosen)
    return few if few.fails.any() else None


def _nearest(deviations: Deviations, candidates: Sequence[Names]) -> list[Names]:
    return [names for names, _ in _rank(deviations, candidates)[:N_KEPT]]


def _rank(deviations: Deviations, candidates: Sequence[Names]) -> list[tuple[Names, float]]:
    possible = [x for x in candidates if combine(deviations.kind, *_mistakes(x)) is not None]
    return _sorted([(names, deviations.remainder(names)) for names in possible])


def _sorted(ranked: list[tuple[Names, float]]) -> list[tuple[Names, float]]:
    """The nearest first; among those that explain everything, the fewest mistakes."""

    def order(item: tuple[Names, float]) -> tuple[int, float]:
        names, remainder = item
        return (len(names) if remainder <= SAME else 99, remainder)

    return sorted(ranked, key=order)


def _diagnosis(ranked: list[tuple[Names, float]]) -> Diagnosis:
    (best, remainder), *others = ranked
    as_good = min(SAME, remainder + ALIKE)
    equals = [names for names, its in others if its <= as_good and len(names) == len(best)]
    rest = [item for item in others if item[1] > SAME]
    runner_up = min(rest, key=lambda item: item[1], default=((), 1.0))
    return Diagnosis(best, remainder, tuple(equals), runner_up)


def _mistakes(names: Names) -> list[Mistake]:
    return [MISTAKES[name] for name in names]


def _row(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([x.reshape(-1).double() for x in tensors]).numpy()
