"""Scores and comparisons as tables: for a terminal and as a page."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnres.analysis.table import MISSING, Column, number_text
from attnres.evaluation.compare import Comparison, OverPairs, overall, overall_over_pairs
from attnres.evaluation.scored import Scored
from attnres.evaluation.task import Task

if TYPE_CHECKING:
    from attnres.evaluation.compare import Difference
    from attnres.experiment import paired as paired_runs

MEAN_NOTE = "Mean difference over tasks scored from 0 to 1"
PAIRS_NOTE = (
    "Differences are of the scores of a pair, with Student's interval of 95 % over pairs: they say "
    "what another pair, as of another seed of training, gives in these questions."
)
IN_A_TERMINAL = ("Task", "Score", "Against", "Difference", "p")


def score_columns(found: Sequence[Scored], tasks: Sequence[Task]) -> list[Column]:
    """A line a task and metric, the compared metric first; what was reported beside it."""
    lines = [(each, metric) for each in found for metric in _metrics(each)]
    shown = [
        Column(title="Task", cells=[each.task for each, _ in lines], is_number=False),
        Column(title="Metric", cells=[metric for _, metric in lines], is_number=False),
        Column(title="Shots", cells=[str(each.n_shots) for each, _ in lines]),
        Column(title="Questions", cells=[f"{len(each.questions):,}" for each, _ in lines]),
        Column(title="Score", cells=[_number(each.mean(metric)) for each, metric in lines]),
        Column(
            title="± 1 se", cells=[_number(each.standard_error(metric)) for each, metric in lines]
        ),
    ]
    by_name = {task.name: task for task in tasks}
    for name in dict.fromkeys(name for task in tasks for name in task.reported):
        cells = []
        for each, metric in lines:
            value = by_name[each.task].reported.get(name) if metric == each.metric else None
            cells.append(MISSING if value is None else f"{value / 100:.3f}")
        shown.append(Column(title=name.capitalize(), cells=cells))
    return shown


def comparison_columns(found: Sequence[Comparison]) -> list[Column]:
    """A line a task and metric."""
    return [
        Column(title="Task", cells=[each.task for each in found], is_number=False),
        Column(title="Metric", cells=[each.metric for each in found], is_number=False),
        Column(title="Questions", cells=[f"{each.n_questions:,}" for each in found]),
        Column(title="Score", cells=[_number(each.score) for each in found]),
        Column(title="Against", cells=[_number(each.against) for each in found]),
        Column(title="Difference", cells=[_difference(each.difference) for each in found]),
        Column(
            title="Higher, lower",
            cells=[f"{each.difference.n_higher}, {each.difference.n_lower}" for each in found],
        ),
        Column(title="p", cells=[f"{each.difference.p:.2g}" for each in found]),
    ]


def for_a_terminal(found: Sequence[Comparison]) -> list[Column]:
    """Each task by its own metric, and what of it 80 characters hold."""
    shown = comparison_columns([each for each in found if each.is_chosen])
    return [column for column in shown if column.title in IN_A_TERMINAL]


def pairs_columns(found: Sequence[OverPairs]) -> list[Column]:
    """A line a task and metric, over several pairs of models."""
    return [
        Column(title="Task", cells=[each.task for each in found], is_number=False),
        Column(title="Metric", cells=[each.metric for each in found], is_number=False),
        Column(title="Score", cells=[_number(each.score) for each in found]),
        Column(title="Against", cells=[_number(each.against) for each in found]),
        Column(title="Difference", cells=[_over_pairs(each.difference) for each in found]),
        Column(title="Pairs", cells=[str(each.difference.n_pairs) for each in found]),
    ]


def notes(found: Sequence[Comparison]) -> list[str]:
    """What must be known to read a table of comparisons."""
    words = [
        "The difference is paired question by question, with an interval of 95 % over questions; "
        "p is of the exact sign test (for scores of 0 and 1: McNemar's). They say what these two "
        "models do on more such questions, not what another seed of training would give."
    ]
    lower = [each.metric for each in found if not each.higher_is_better]
    if lower:
        words.append(f"Lower is better: {', '.join(dict.fromkeys(lower))}.")
    if len(found) > 1:
        words.append(
            f"Of {len(found)} intervals, about {len(found) / 20:.1f} leave out the true value."
        )
    if (mean := overall(found)) is not None:
        value, low, high = map(_signed, mean)
        words.append(f"{MEAN_NOTE}: {value} ({low} to {high}).")
    return words


def notes_on_pairs(found: Sequence[Sequence[Comparison]]) -> list[str]:
    """Below a table of several pairs."""
    mean = overall_over_pairs(found)
    if mean is None:
        return [PAIRS_NOTE]
    return [PAIRS_NOTE, f"{MEAN_NOTE}: {_over_pairs(mean)}."]


def _metrics(found: Scored) -> list[str]:
    return [found.metric, *(name for name in found.values if name != found.metric)]


def _number(value: float) -> str:
    return MISSING if math.isnan(value) else number_text(value, "z.3f")


def _signed(value: float) -> str:
    return number_text(value, "+z.3f")


def _difference(difference: "Difference") -> str:
    mean, low, high = map(_signed, difference[:3])
    return f"{mean} ({low} to {high})"


def _over_pairs(difference: "paired_runs.Difference") -> str:
    half = difference.half_width
    return _signed(difference.mean) + ("" if half is None else f" ± {half:.3f}")
