"""Questions of reasoning-gym that no training has, scored by the generator's own scorer."""

from collections.abc import Sequence
from functools import partial
from importlib import metadata

from attnres.evaluation import own_task
from attnres.evaluation.task import Task
from attnres.train import reasoning

SOLVED = 1.0  # what a scorer gives for a right answer; a wrong one may get a little
N_TOKENS = 48  # of an answer, at most
N_EXAMPLES = 32  # questions to draw examples from


def tasks() -> list[Task]:
    """For each generator the answer as the model writes it."""
    return [_task(name) for name in reasoning.GENERATORS]


def likelihood_tasks() -> list[Task]:
    """For each generator how likely the answer is: for models too small to write it."""
    return [
        own_task.likelihood(f"{name}_likelihood", partial(_splits, name), _version())
        for name in reasoning.GENERATORS
    ]


def _task(name: str) -> Task:
    return own_task.generated(
        name,
        partial(_splits, name),
        partial(_results, name),
        {"solved": True, "score": True},
        until=["\n"],
        n_tokens=N_TOKENS,
        version=_version(),
        metric="solved",
    )


def _version() -> str:
    reasoning.package()
    return f"{reasoning.VERSION}, reasoning-gym {metadata.version('reasoning-gym')}"


def _splits(name: str) -> own_task.Splits:
    """What is asked, and examples from what is trained on."""
    asked = reasoning.questions(name)
    examples = reasoning.questions(name, reasoning.FIRST_TRAINED, N_EXAMPLES)
    return {
        split: [q._asdict() for q in part] for split, part in (("test", asked), ("train", examples))
    }


def _results(name: str, doc: own_task.Row, results: Sequence[str]) -> dict[str, float]:
    score = reasoning.score(name, doc["number"], results[0].strip())
    return {"solved": float(score >= SOLVED), "score": score}
