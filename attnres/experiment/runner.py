"""Runs what a study lacks: each worker is a process of one thread, so a row depends on no other.

Workers end with the command that started them, however it ends; the command then resumes.
"""

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from attnres.experiment.folder import load_study
from attnres.experiment.locks import alone
from attnres.experiment.results import Row, due, n_left, read_rows, write_rows
from attnres.experiment.study import Study, Trial
from attnres.huge_pages import ask_for_them
from attnres.quiet import silence_imports

if TYPE_CHECKING:
    from attnres.train.data import TokenData

MOST_SECONDS = 1.0  # from one look at the workers to the next


class Watch(Protocol):
    """Who is told how a study goes on."""

    def show(self, n_done: int, n_left: int, steps: Sequence[int]) -> None:
        """Runs done and to go, and the finished steps of those that are under way."""

    def finished(self, row: Row, n_done: int, n_left: int) -> None:
        """A row has been written."""

    def failed(self, trial: Trial, reason: str) -> None:
        """A run was not possible; its arm gets no more of them."""


class Place(NamedTuple):
    """What a worker needs to find its study, and where its runs go."""

    study: Path
    is_quick: bool
    runs: Path  # folder of all studies' runs
    n_seeds: int | None = None  # in place of the study's own
    point: str = ""  # of a sweep

    def load(self) -> Study:
        return load_study(self.study, self.is_quick, self.n_seeds, self.point)


class Failure(NamedTuple):
    """Why a run was not possible."""

    reason: str


class ArmsFailedError(ValueError):
    """Arms that could not be run, while all others were: why, by arm, and all rows then."""

    def __init__(self, reasons: Mapping[str, str], rows: Sequence[Row]):
        super().__init__("; ".join(f"arm {arm!r}: {reason}" for arm, reason in reasons.items()))
        self.reasons, self.rows = reasons, rows


def run_study(
    place: Place, arms: Sequence[str], results: Path, n_processes: int, watch: Watch
) -> list[Row]:
    """Every run of these arms that `results` lacks, and all rows then.

    Raises:
        ValueError: rows of another study, another command at work on the same rows or runs.
        ArmsFailedError: at the end, arms that failed, while all others have been run.
    """
    study, failed = place.load(), dict[str, str]()
    with ExitStack() as stack:
        for lock in (runs_folder(study, place.runs) / ".lock", results.with_suffix(".lock")):
            stack.enter_context(alone(lock))
        rows = read_rows(results, study)
        n_workers = min(n_processes, n_left(study, rows, arms))
        workers = stack.enter_context(_workers(place, n_workers))
        while True:
            arms = [arm for arm in arms if arm not in failed]
            _assign(workers, due(study, rows, arms))
            busy = [worker for worker in workers if worker.trial is not None]
            if not busy:
                break
            watch.show(len(rows), n_left(study, rows, arms), [worker.step for worker in busy])
            for trial, outcome in _received(busy):
                if isinstance(outcome, Failure):
                    failed[trial.arm] = outcome.reason
                    watch.failed(trial, outcome.reason)
                    continue
                check_tokens(outcome, rows, results)
                rows.append(outcome)
                write_rows(results, rows)
                watch.finished(outcome, len(rows), n_left(study, rows, arms))
    if failed:
        raise ArmsFailedError(failed, rows)
    return rows


def runs_folder(study: Study, runs: Path) -> Path:
    """Runs of one version of a study, so that those of another are never taken for them."""
    return runs / study.name / study.fingerprint


class Worker:
    """A process that makes one run after the other."""

    def __init__(self, place: Place):
        self._place = place
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child = context.Pipe()
        arguments = (child, self._place)
        self.process: BaseProcess = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        child.close()
        self.trial: Trial | None = None
        self.step = 0

    def assign(self, trial: Trial) -> None:
        self.trial, self.step = trial, 0
        self.pipe.send(trial)

    def receive(self) -> Row | Failure | None:
        """What came of the run, if it is over."""
        assert self.trial is not None
        try:
            message = self.pipe.recv()
        except EOFError:
            self.process.join()
            words = f"the process of {self.trial.name} ended with status {self.process.exitcode}"
            self._start()  # for the runs of other arms
            return Failure(f"{words}; the same command goes on from there")
        if isinstance(message, int):
            self.step = message
            return None
        self.trial = None
        return message

    def stop(self) -> None:
        """A run that is under way is left as if it was killed: it resumes."""
        with suppress(OSError):
            self.pipe.close()
        self.process.terminate()
        self.process.join()


def work(pipe: Connection, place: Place) -> None:
    """What a worker does: a trial comes in; steps go out, then its row."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command stops its workers
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the command is gone
        while True:
            trial = pipe.recv()
            pipe.send(_outcome(place, trial, pipe))


def _outcome(place: Place, trial: Trial, pipe: Connection) -> Row | Failure:
    try:
        study, tokens = loaded(place)
        from attnres.experiment.trial import run_trial

        return run_trial(study, trial, runs_folder(study, place.runs), tokens, pipe.send)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        if not isinstance(error, (ValueError, OSError, ModuleNotFoundError)):
            traceback.print_exc()  # not foreseen, so its place is needed
        return Failure(f"{type(error).__name__}: {error}")


@cache
def loaded(place: Place) -> "tuple[Study, TokenData]":
    silence_imports()
    from tqdm import tqdm
    from transformers.utils import logging

    from attnres.train.data import load_data

    logging.disable_progress_bar()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, of which a killed worker leaves word
    study = place.load()
    return study, load_data(study.base.data)


def _assign(workers: list[Worker], trials: list[Trial]) -> None:
    under_way = {worker.trial for worker in workers}
    waiting = [trial for trial in trials if trial not in under_way]
    idle = [worker for worker in workers if worker.trial is None]
    for worker, trial in zip(idle, waiting, strict=False):
        worker.assign(trial)


def _received(busy: list[Worker]) -> Iterator[tuple[Trial, Row | Failure]]:
    ready = wait([worker.pipe for worker in busy], MOST_SECONDS)
    for worker in busy:
        trial = worker.trial
        if worker.pipe in ready and (outcome := worker.receive()) is not None:
            assert trial is not None
            yield trial, outcome


def check_tokens(row: Row, rows: Sequence[Row], results: Path) -> None:
    """ValueError where a run has read another text than those before it."""
    if rows and row.tokens != rows[0].tokens:
        raise ValueError(
            f"the text is {row.tokens} as tokens, that of the rows in {results} {rows[0].tokens}"
        )


@contextmanager
def _workers(place: Place, n_processes: int) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    ask_for_them()
    try:
        for _ in range(n_processes):
            workers.append(Worker(place))
        yield workers
    finally:
        for worker in workers:
            worker.stop()
