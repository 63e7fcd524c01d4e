"""Models in local files, scored on tasks by lm-evaluation-harness."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres.models.pretrained import load_pretrained


def evaluate(
    source: str | Path,
    tasks: Sequence[str],
    *,
    n_shots: int | None = None,
    limit: int | None = None,
    batch_size: int = 1,
) -> dict[str, Any]:
    """What the harness makes of a model, converted or plain: its `results` and their settings.

    Args:
        source: as in `load_pretrained`.
        tasks: names that the harness knows, or paths of tasks in YAML.
        n_shots: examples before each question; as many as the task says where None.
        limit: the most questions of a task; all where None.
        batch_size: sequences a forward pass.

    Raises:
        ValueError: no such model or task, or a model without a tokenizer.
        OSError: a task whose data are neither on this machine nor may be fetched.
    """
    simple_evaluate, HFLM, TaskManager = _harness()
    if not tasks:
        raise ValueError("tasks: give one at least")
    loaded = load_pretrained(source)
    if loaded.tokenizer is None:
        raise ValueError(f"{source} has no tokenizer, so it reads no tasks")
    model = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size)
    manager = TaskManager(include_defaults=not all(map(_is_file, tasks)))
    try:
        return simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            num_fewshot=n_shots,
            limit=limit,
            log_samples=False,
        )
    except KeyError as error:
        if "not a registered" not in str(error):
            raise
        raise ValueError(f"tasks: {error.args[0]}") from error


def table(found: dict[str, Any]) -> str:
    """A row a metric."""
    from lm_eval.utils import make_table  # pyright: ignore  an optional package

    return make_table(found)


def _harness() -> tuple[Any, Any, Any]:
    try:
        from lm_eval import simple_evaluate  # pyright: ignore  an optional package
        from lm_eval.models.huggingface import HFLM  # pyright: ignore  an optional package
        from lm_eval.tasks import TaskManager  # pyright: ignore  an optional package
    except ModuleNotFoundError as error:
        raise ValueError(
            f"evaluating needs {error.name}: pip install 'attention-residuals[eval]'"
        ) from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of a model that is an object
    return simple_evaluate, HFLM, TaskManager


def _is_file(task: str) -> bool:
    return Path(task).suffix in (".yaml", ".yml")
