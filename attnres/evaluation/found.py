"""What lm-evaluation-harness has found, as numbers question by question."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from attnres.evaluation.task import Task

WITHOUT_FILTER = ",none"
Values = Mapping[str, Mapping[str, float]]  # by metric, by question


def by_question(found: Mapping[str, Any]) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Metrics that have a number for every question, and the text that was written to each."""
    values: dict[str, dict[str, float]] = {}
    answers: dict[str, str] = {}
    for part, rows in found["samples"].items():
        for row in sorted(rows, key=lambda row: row["doc_id"]):
            question = f"{part}/{row['doc_id']}/{row['doc_hash'][:8]}"
            response = row["resps"][0][0]
            if isinstance(response, str):
                answers[question] = response
            for metric in row["metrics"]:
                name = f"{metric},{row['filter']}".removesuffix(WITHOUT_FILTER)
                values.setdefault(name, {})[question] = row[metric]
    n_all = max(map(len, values.values()), default=0)
    return {name: each for name, each in values.items() if _is_whole(each, n_all)}, answers


def _is_whole(values: Mapping[str, Any], n_questions: int) -> bool:
    return len(values) == n_questions and all(isinstance(x, Real) for x in values.values())


def mean_values(
    runs: Sequence[tuple[Mapping[str, Mapping[str, float]], Mapping[str, str]]],
) -> tuple[list[str], dict[str, list[float]], list[str]]:
    """Questions, the mean over runs of each metric, and what was written in the first."""
    first, answers = runs[0]
    questions = list(next(iter(first.values()), {}))
    means = {
        metric: [float(sum(v[metric][q] for v, _ in runs)) / len(runs) for q in questions]
        for metric in first
    }
    return questions, means, [answers[q] for q in questions if q in answers]


def chosen(task: Task, values: Mapping[str, Any]) -> str:
    if task.metric and task.metric not in values:
        known = ", ".join(values)
        raise ValueError(f"{task.name} has no metric {task.metric!r} a question; it has: {known}")
    return task.metric or next(iter(values))


def higher_is_better(found: Mapping[str, Any], metric: str) -> bool:
    name = metric.partition(",")[0]
    said = [each.get(name) for each in found["higher_is_better"].values()]
    return next((each for each in said if each is not None), True)


def aggregates(found: Mapping[str, Any], task: Task) -> dict[str, float]:
    """Of the whole task, by metric; a task of several parts without an aggregate has none."""
    results = found["results"]
    whole = results.get(task.spec) if isinstance(task.spec, str) else None
    if whole is None and len(results) == 1:
        (whole,) = results.values()
    return {
        name.removesuffix(WITHOUT_FILTER): float(value)
        for name, value in (whole or {}).items()
        if isinstance(value, Real) and "_stderr" not in name and name != "sample_len"
    }
