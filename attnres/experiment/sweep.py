"""A question asked at several sizes: one study a point, with the same arms and the same text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from attnres.analysis.compute import Compute, training_compute
from attnres.analysis.points import Points, gather
from attnres.analysis.table import Column
from attnres.experiment.page import differences
from attnres.experiment.results import Row
from attnres.experiment.study import REFERENCE, Study, quick
from attnres.experiment.summary import (
    WHAT_IT_SHOWS,
    at_edge,
    final_losses,
    shortfalls,
    summarise,
    trust,
)

SAME_COMPUTE = 1.05  # largest over smallest C: beyond it the largest point wins by its size
IN_A_TERMINAL = ("Point", "Arm", "Sublayers", "C", "Loss", "Minus standard", "Seeds")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Studies by the name of their point, in order.

    Raises:
        ValueError: no points, or points that differ in arms, `beside` or text.
    """

    name: str
    studies: Mapping[str, Study]

    def __post_init__(self):
        kinds = {(tuple(s.arms.items()), s.beside, s.base.data) for s in self.studies.values()}
        if len(kinds) != 1:
            raise ValueError(f"the points of sweep {self.name!r} differ in arms, beside or text")
        for point in self.studies:
            if not point or set("/\0 ") & set(point):
                raise ValueError(f"a point is named as a file is, got {point!r}")


class At(NamedTuple):
    """A point, its study and what it has come to."""

    point: str
    study: Study
    rows: Sequence[Row]


def quicker(study: Study) -> Study:
    """`quick`, with one rate and one seed."""
    small = quick(study)
    return replace(small, learning_rates=small.learning_rates[:1], seeds=small.seeds[:1])


def compute_of(study: Study, arm: str) -> Compute:
    """Of one run; the vocabulary is taken to have its full size."""
    base = study.base
    model = replace(base.model, residual=study.residual(arm))
    n_tokens = base.n_steps * base.tokens_per_step
    return training_compute(model, base.data.vocab_size, base.seq_len, n_tokens)


def columns(found: Sequence[At]) -> list[Column]:
    """A line a point and arm."""
    lines = [(at, arm) for at in found for arm in summarise(at.study, at.rows)]
    return [
        Column(title="Point", cells=[at.point for at, _ in lines], is_number=False),
        Column(title="Arm", cells=[arm.arm for _, arm in lines], is_number=False),
        Column(title="Sublayers", cells=[str(2 * at.study.base.model.n_layers) for at, _ in lines]),
        Column(title="Width", cells=[str(at.study.base.model.dim) for at, _ in lines]),
        Column(title="Tokens", cells=[f"{_n_tokens(at.study):,}" for at, _ in lines]),
        Column(
            title="C",
            cells=[f"{compute_of(at.study, a.arm).total('attention'):.3g}" for at, a in lines],
        ),
        Column(title="Loss", cells=["" if a.mean is None else f"{a.mean:.4f}" for _, a in lines]),
        *differences(found[0].study, [arm for _, arm in lines]),
        Column(title="Seeds", cells=[str(arm.n_seeds - arm.n_diverged) for _, arm in lines]),
        Column(title="Rate", cells=["" if a.lr is None else f"{a.lr:g}" for _, a in lines]),
    ]


def for_a_terminal(table: Sequence[Column]) -> list[Column]:
    """Those of `columns` that 80 characters hold: a point says its size."""
    return [column for column in table if column.title in IN_A_TERMINAL]


def is_one_compute(found: Sequence[At]) -> bool:
    """Whether the points differ in shape alone, so that there is no law over their compute."""
    budgets = [compute_of(at.study, REFERENCE).total("attention") for at in found]
    return max(budgets) < SAME_COMPUTE * min(budgets)


def notes(found: Sequence[At]) -> Iterator[str]:
    """What must be known to read the table, and what is lacking where."""
    every = [(at, summarise(at.study, at.rows)) for at in found]
    yield WHAT_IT_SHOWS
    points: dict[str, list[str]] = {}  # of each remark
    for at, arms in every:
        for words in (*shortfalls(at.study, arms), *at_edge(at.study, arms)):
            points.setdefault(words, []).append(at.point)
    yield from (f"{', '.join(places)}: {words}" for words, places in points.items())
    yield from trust([arm for _, arms in every for arm in arms])


def points_of(found: Sequence[At], counting: str = "attention") -> Points:
    """Losses over compute, for `attnres.analysis.bootstrap.estimate`.

    Raises:
        ValueError: points of one compute, none with a final run.
    """
    if is_one_compute(found):
        raise ValueError("the points differ in shape, hardly in compute")
    cells: dict[str, dict[float, dict[str, float]]] = {}
    for at in found:
        for arm in at.study.arms:
            losses = final_losses(at.study, at.rows, arm)
            if losses:
                budget = compute_of(at.study, arm).total(counting)  # pyright: ignore[reportArgumentType]
                by_seed = {str(seed): loss for seed, loss in losses.items()}
                cells.setdefault(arm, {})[budget] = by_seed
    if not cells:
        raise ValueError("no arm has a final run yet")
    return gather(cells, "FLOPs")


def to_csv(found: Sequence[At]) -> str:
    """Rows for `attnres fit`, with C counted in each of the three ways."""
    return (
        "\n".join(["arm,point,seed,loss,budget,budget_weights,budget_all", *_lines(found)]) + "\n"
    )


def _lines(found: Sequence[At]) -> Iterator[str]:
    for at in found:
        for arm in at.study.arms:
            losses = final_losses(at.study, at.rows, arm)
            if not losses:  # it may be one that cannot be run, so not counted either
                continue
            compute = compute_of(at.study, arm)
            budgets = (compute.total("attention"), compute.total("weights"), compute.total("all"))
            numbers = ",".join(f"{budget:.6g}" for budget in budgets)
            for seed, loss in losses.items():
                yield f"{arm},{at.point},{seed},{loss},{numbers}"


def _n_tokens(study: Study) -> int:
    return study.base.n_steps * study.base.tokens_per_step
