"""Results of a task without a model."""

from attnres.evaluation.scored import Scored
from attnres.evaluation.task import named

STAMP = {"source": "model", "files": "0123", "dtype": "auto"}


def scored(task, values, metric="", questions=None, limit=None, n_shots=None, **changes) -> Scored:
    """Of the task of this name; nats are better where they are lower."""
    n_questions = len(next(iter(values.values())))
    settings = {
        "settings": named(task, n_shots).settings(limit),
        "model": STAMP,
        "n_shots": n_shots or 0,
        "questions": questions or [f"{task}/{i}/x" for i in range(n_questions)],
        "values": values,
        "higher_is_better": {name: name != "nats" for name in values},
        "metric": metric or next(iter(values)),
    }
    return Scored(**(settings | changes))
