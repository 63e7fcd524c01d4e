"""Where a sweep at one compute has its lowest loss, and how sure of it the seeds let one be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnres.analysis.table import Column
from attnres.experiment.study import REFERENCE
from attnres.experiment.summary import final_losses
from attnres.experiment.sweep import At, is_one_compute

N_DRAWN = 10_000
LEAST_SHARE = 0.01  # of the drawings: rarer points are not shown


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """An arm's best point in drawings of its seeds, the same drawings for all arms."""

    arm: str
    shares: dict[str, float]  # of the drawings in which a point has the lowest mean loss
    deeper: float  # share in which that point has more layers than the reference's
    as_deep: float


def optima(found: Sequence[At]) -> list[Optimum]:
    """One an arm; none where the points differ in compute, or fewer than two have all seeds.

    A mean of few seeds drawn anew spreads too little, so what a drawing changes is widened by
    sqrt(S / (S - 1)) for S seeds.
    """
    whole = [at for at in found if _is_whole(at)]
    if len(whole) < 2 or not is_one_compute(whole):
        return []
    seeds = whole[0].study.seeds
    drawn_NPS = np.random.default_rng(0).integers(
        len(seeds), size=(N_DRAWN, len(whole), len(seeds))
    )
    best = {arm: _best_places(whole, arm, drawn_NPS) for arm in whole[0].study.arms}
    n_layers_P = np.array([at.study.base.model.n_layers for at in whole])
    return [
        _optimum(arm, best_N, best[REFERENCE], n_layers_P, whole) for arm, best_N in best.items()
    ]


def columns(found: Sequence[Optimum]) -> list[Column]:
    """A line an arm and point, the likeliest first."""
    lines = [(each.arm, point, share) for each in found for point, share in _shown(each)]
    return [
        Column(title="Arm", cells=[arm for arm, _, _ in lines], is_number=False),
        Column(title="Point", cells=[point for _, point, _ in lines], is_number=False),
        Column(title="Lowest in", cells=[f"{share:.0%}" for _, _, share in lines]),
    ]


def notes(found: Sequence[Optimum]) -> Iterator[str]:
    yield (
        f"Of {N_DRAWN:,} drawings of the seeds of every point that has them all; points below 1 % "
        "are not shown."
    )
    for each in found:
        if each.arm != REFERENCE:
            yield (
                f"The best point of {each.arm} has more layers than that of {REFERENCE} in "
                f"{each.deeper:.0%} of the drawings, as many in {each.as_deep:.0%}."
            )


def _is_whole(at: At) -> bool:
    losses = [final_losses(at.study, at.rows, arm) for arm in at.study.arms]
    return len(at.study.seeds) > 1 and all(
        len(each) == len(at.study.seeds) and np.isfinite([*each.values()]).all() for each in losses
    )


def _best_places(found: Sequence[At], arm: str, drawn_NPS: np.ndarray) -> np.ndarray:
    """The place of the best point in each drawing."""
    losses = [final_losses(at.study, at.rows, arm) for at in found]
    losses_PS = np.array([[each[seed] for seed in found[0].study.seeds] for each in losses])
    n_seeds = losses_PS.shape[1]
    drawn_NP = np.take_along_axis(losses_PS[None], drawn_NPS, axis=2).mean(axis=2)
    mean_P = losses_PS.mean(axis=1)
    return (mean_P + np.sqrt(n_seeds / (n_seeds - 1)) * (drawn_NP - mean_P)).argmin(axis=1)


def _optimum(
    arm: str,
    best_N: np.ndarray,
    reference_N: np.ndarray,
    n_layers_P: np.ndarray,
    found: Sequence[At],
) -> Optimum:
    counts_P = np.bincount(best_N, minlength=len(found))
    more_N = n_layers_P[best_N] - n_layers_P[reference_N]
    return Optimum(
        arm=arm,
        shares={at.point: n / len(best_N) for at, n in zip(found, counts_P.tolist(), strict=True)},
        deeper=float((more_N > 0).mean()),
        as_deep=float((more_N == 0).mean()),
    )


def _shown(each: Optimum) -> list[tuple[str, float]]:
    ranked = sorted(each.shares.items(), key=lambda item: -item[1])
    return [(point, share) for point, share in ranked if share >= LEAST_SHARE]
