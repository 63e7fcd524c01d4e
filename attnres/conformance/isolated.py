"""Asking an implementation in a process of its own: it may hang, die or print what it likes."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from attnres.conformance.answers import Answer, Way, ask
from attnres.conformance.budget import case_named, cases_of
from attnres.conformance.cases import KindName

START_S = 300.0  # to import the module that is asked
N_LOST = 3  # processes that may hang or die before the rest is given up
Question = tuple[Way, str]


def ask_isolated(
    target: str, kind: KindName, ways: Sequence[Way], timeout_s: float = 60.0
) -> dict[tuple[torch.dtype, str], Answer]:
    """Answers to every case, by dtype and case; a question that kills its process has a problem.

    Args:
        target: "module:function", or "path/to/file.py:function".
        timeout_s: for one question.

    Raises:
        ValueError: a target that cannot be imported, with the reason.
    """
    questions = [(way, case.name) for way in ways for case in cases_of(kind)]
    answers: list[Answer] = []
    n_lost = 0
    while len(answers) < len(questions) and n_lost < N_LOST:
        found, lost = _run(target, kind, questions[len(answers) :], timeout_s)
        answers += found
        if lost:
            answers.append(Answer({}, lost))
            n_lost += 1
    answers += [Answer({}, f"not asked, after {N_LOST} losses")] * (len(questions) - len(answers))
    pairs = zip(questions, answers, strict=True)
    return {(way.dtype, case): answer for (way, case), answer in pairs}


def load(target: str) -> Callable[..., Any]:
    """The function of "module:name" or "file.py:name"; ValueError where there is none."""
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"give module:function or file.py:function, got {target!r}")
    found: Any = _module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{target} is a {type(found).__name__}, not a function")
    return found


def _module(name: str) -> Any:
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"there is no file {name}")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _run(
    target: str, kind: KindName, questions: Sequence[Question], timeout_s: float
) -> tuple[list[Answer], str]:
    """Answers until one is lost, and how it was; no words where none is."""
    context = get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_work, args=(its, target, kind, questions), daemon=True)
    process.start()
    its.close()
    answers: list[Answer] = []
    try:
        if failed := _receive(ours, START_S, "importing it took longer than"):
            raise ValueError(f"{target}: {failed}")
        for _ in questions:
            answers.append(_unpacked(_receive(ours, timeout_s, "no answer within")))
    except (TimeoutError, EOFError, ConnectionError) as error:
        process.join(0 if isinstance(error, TimeoutError) else 10)
        return answers, str(error) if isinstance(error, TimeoutError) else _death(process.exitcode)
    finally:
        process.kill()
        process.join()
    return answers, ""


def _receive(connection: Any, timeout_s: float, words: str) -> Any:
    if not connection.poll(timeout_s):
        raise TimeoutError(f"{words} {timeout_s:g} s")
    return connection.recv()


def _death(status: int | None) -> str:
    if status is not None and status < 0:
        return f"its process died by signal {-status}"
    return f"its process ended with status {status}"


def _work(connection: Any, target: str, kind: KindName, questions: Sequence[Question]) -> None:
    try:
        function = load(target)
    except Exception as error:
        lines = str(error).strip().splitlines() or [traceback.format_exc()]
        words = lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"
        connection.send(words)
        return
    connection.send("")
    for way, case in questions:
        connection.send(_packed(ask(kind, function, case_named(kind, case), way)))


def _packed(answer: Answer) -> tuple[Any, ...]:
    """Without tensors: torch would share their memory with a process that ends."""
    arrays = {name: x.numpy() for name, x in answer.values.items()}
    return arrays, answer.problem, answer.trace, answer.habits


def _unpacked(packed: tuple[Any, ...]) -> Answer:
    arrays, *rest = packed
    return Answer({name: torch.from_numpy(x) for name, x in arrays.items()}, *rest)
