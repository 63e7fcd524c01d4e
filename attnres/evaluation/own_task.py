"""Tasks whose questions are made here, in the form that lm-evaluation-harness reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnres.evaluation.task import Task

Row = dict[str, Any]
Splits = dict[str, list[Row]]  # "test" is asked; "train", where it is there, gives examples
Results = Callable[[Row, Sequence[Any]], Mapping[str, float]]
LIKELIHOOD_VERSION = 2  # 1 asked for answers without a space before them
GENERATED_VERSION = 2  # 1 let a run write on after an end of text


def config(
    name: str, splits: Callable[[], Splits], metrics: Mapping[str, bool], **settings: Any
) -> dict[str, Any]:
    """What the harness takes for a task.

    Args:
        name: of the task.
        splits: makes the questions, each with `text` and what else `settings` name.
        metrics: by name, whether higher is better.
        settings: of the harness: output_type, doc_to_target, process_results and so on.
    """

    def dataset(**kwargs: Any) -> dict[str, Any]:
        from datasets import Dataset

        return {name: Dataset.from_list(rows) for name, rows in splits().items()}

    return {
        "task": name,
        "custom_dataset": dataset,
        "test_split": "test",
        "fewshot_split": "train",
        "doc_to_text": "text",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": higher}
            for metric, higher in metrics.items()
        ],
        **settings,
    }


def generated(
    name: str,
    splits: Callable[[], Splits],
    results: Results,
    metrics: Mapping[str, bool],
    until: Sequence[str],
    n_tokens: int,
    version: str,
    **more: Any,
) -> Task:
    """A task whose answer is a text, written greedily until a stop, at most `n_tokens` long."""
    spec = config(
        name,
        splits,
        metrics,
        output_type="generate_until",
        doc_to_target="answer",
        process_results=results,
        generation_kwargs={"until": list(until), "max_gen_toks": n_tokens, "do_sample": False},
    )
    version = f"{version}; {GENERATED_VERSION}"
    return Task(name=name, spec=spec, version=version, **more)


def likelihood(name: str, splits: Callable[[], Splits], version: str, **more: Any) -> Task:
    """How likely the answer is: nats of all its tokens, and whether each is the likeliest."""
    spec = config(
        name,
        splits,
        {"acc": True, "nats": False},
        output_type="loglikelihood",
        doc_to_target=_after_a_space,
        target_delimiter="",
        process_results=_likelihood_results,
    )
    version = f"{version}; {LIKELIHOOD_VERSION}"
    return Task(name=name, spec=spec, version=version, metric="nats", **more)


def choice(name: str, splits: Callable[[], Splits], version: str, **more: Any) -> Task:
    """Which of the `choices` is likeliest, as such (acc) and per character (acc_norm)."""
    spec = config(
        name,
        splits,
        {"acc": True, "acc_norm": True},
        output_type="multiple_choice",
        doc_to_choice="choices",
        doc_to_target="gold",
    )
    return Task(name=name, spec=spec, version=version, metric="acc", **more)


def _after_a_space(doc: Row) -> str:
    """The answer as it stands in a text; the harness's own delimiter is in examples alone."""
    return f" {doc['answer']}"


def _likelihood_results(doc: Row, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    log_likelihood, is_likeliest = results[0]
    return {"acc": float(is_likeliest), "nats": -float(log_likelihood)}
