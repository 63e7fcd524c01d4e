"""What the rows of a study say: one line an arm, beside what another work reports."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnres.experiment.paired import ENOUGH, Difference, paired_difference
from attnres.experiment.results import Row, best_lr
from attnres.experiment.study import REFERENCE, Study

WHAT_IT_SHOWS = (
    "Losses in nats a token on held-out text that chose no rate, mean over seeds; the difference "
    "is paired by seed, with Student's interval of 95 %."
)


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """An arm at its best rate. None is what there is no row for."""

    arm: str
    residual: str
    lr: float | None
    is_at_edge: bool  # a rate beyond the grid might be better
    n_tried: int  # rates
    n_seeds: int
    n_diverged: int  # of them
    mean: float | None  # nats a token over the seeds that did not diverge
    sd: float | None
    difference: Difference | None  # from standard, over the seeds that both have
    beside: Difference | None  # from the arm that the study names, likewise
    n_params: int
    n_residual_params: int
    tokens_per_s: float  # median over runs
    paper: float | None
    paper_difference: float | None

    @property
    def is_failed(self) -> bool:
        return self.lr is None and self.n_tried > 0


def summarise(study: Study, rows: Sequence[Row]) -> list[ArmSummary]:
    """Arms that have rows, in the study's order or from the lowest mean loss to the highest."""
    present = [arm for arm in study.arms if any(row.arm == arm for row in rows)]
    found = [_summary(study, rows, arm) for arm in present]
    if study.in_order:
        return found
    return sorted(found, key=lambda each: math.inf if each.mean is None else each.mean)


def final_losses(study: Study, rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Reported loss by seed, at the best rate."""
    lr = best_lr(study, rows, arm)
    own = [row for row in rows if row.trial[:3] == ("final", arm, lr)]
    losses = {row.seed: row.report_loss for row in own}
    return {seed: losses[seed] for seed in study.seeds if seed in losses}


def _summary(study: Study, rows: Sequence[Row], arm: str) -> ArmSummary:
    own = [row for row in rows if row.arm == arm]
    lr, losses = best_lr(study, rows, arm), final_losses(study, rows, arm)
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    tried = {row.lr for row in own if row.phase == "tuning"} & set(study.learning_rates)
    return ArmSummary(
        arm=arm,
        residual=own[0].residual,
        lr=lr,
        is_at_edge=lr in (min(study.learning_rates), max(study.learning_rates)),
        n_tried=len(tried),
        n_seeds=len(losses),
        n_diverged=len(losses) - len(finite),
        mean=statistics.fmean(finite) if finite else None,
        sd=statistics.stdev(finite) if len(finite) > 1 else None,
        difference=_difference(study, rows, arm, REFERENCE),
        beside=None if study.beside is None else _difference(study, rows, arm, study.beside),
        n_params=own[0].n_params,
        n_residual_params=own[0].n_residual_params,
        tokens_per_s=statistics.median(row.tokens_per_s for row in own),
        paper=study.paper.get(arm),
        paper_difference=_paper_difference(study, arm),
    )


def _paper_difference(study: Study, arm: str) -> float | None:
    paper, base = study.paper.get(arm), study.paper.get(REFERENCE)
    return None if paper is None or base is None or arm == REFERENCE else paper - base


def _difference(study: Study, rows: Sequence[Row], arm: str, other: str) -> Difference | None:
    """Of an arm from another, over the seeds of which neither diverged; None from itself."""
    losses, reference = (final_losses(study, rows, each) for each in (arm, other))
    pairs = [
        (loss, reference[seed])
        for seed, loss in losses.items()
        if math.isfinite(loss) and math.isfinite(reference.get(seed, math.inf))
    ]
    return paired_difference(*zip(*pairs, strict=True)) if pairs and arm != other else None


def notes(study: Study, arms: Sequence[ArmSummary]) -> Iterator[str]:
    """What must be known to read the table."""
    yield WHAT_IT_SHOWS
    yield from shortfalls(study, arms)
    yield from trust(arms)
    yield from at_edge(study, arms)


def shortfalls(study: Study, arms: Sequence[ArmSummary]) -> Iterator[str]:
    """Runs that are lacking or diverged."""
    lacking = [each.arm for each in arms if not each.is_failed and each.n_seeds < len(study.seeds)]
    lacking += [arm for arm in study.arms if arm not in {each.arm for each in arms}]
    if lacking:
        yield f"Not finished: {', '.join(lacking)}."
    failed = [
        each.arm for each in arms if each.is_failed and each.n_tried == len(study.learning_rates)
    ]
    if failed:
        yield f"Diverged at every rate tried: {', '.join(failed)}."
    diverged = [
        f"{each.arm} {each.n_diverged} of {each.n_seeds}" for each in arms if each.n_diverged
    ]
    if diverged:
        yield f"Seeds that diverged and are in no mean: {', '.join(diverged)}."


def at_edge(study: Study, arms: Sequence[ArmSummary]) -> Iterator[str]:
    """Arms that a rate beyond those tried might suit better."""
    edge = [each.arm for each in arms if each.is_at_edge and len(study.learning_rates) > 1]
    if edge:
        yield f"Best at the edge of the rates tried, so perhaps better beyond: {', '.join(edge)}."


def trust(arms: Sequence[ArmSummary]) -> Iterator[str]:
    """How small a difference the intervals leave to be seen."""
    every = (each for arm in arms for each in (arm.difference, arm.beside))
    differences = [each for each in every if each is not None]
    widths = [d.half_width for d in differences if d.half_width is not None]
    few = [d.n_pairs for d in differences if d.n_pairs < ENOUGH]
    if few:
        yield f"With fewer than {ENOUGH} seeds a difference says next to nothing: run more."
    elif widths:
        yield (
            f"Half of the intervals are within ±{statistics.median(widths):.4f}: about the "
            "smallest difference this study resolves. "
            f"Of {len(widths)} intervals, about {len(widths) / 20:.1f} leave out the true value."
        )
