"""Runs what a study lacks: each worker is a process of one thread, so a row depends on no other.

Workers end with the command that started them, however it ends; the command then resumes.
"""

import fcntl
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, Protocol

from attnres.experiment.folder import load_study
from attnres.experiment.results import Row, due, n_left, read_rows, write_rows
from attnres.experiment.study import Study, Trial

MOST_SECONDS = 1.0  # from one look at the workers to the next


class Watch(Protocol):
    """Who is told how a study goes on."""

    def show(self, n_done: int, n_left: int, steps: Sequence[int]) -> None:
        """Runs done and to go, and the finished steps of those that are under way."""

    def finished(self, row: Row, n_done: int, n_left: int) -> None:
        """A row has been written."""


class Place(NamedTuple):
    """What a worker needs to find its study, and where its runs go."""

    study: Path
    is_quick: bool
    runs: Path  # folder of all studies' runs
    n_seeds: int | None = None  # in place of the study's own

    def load(self) -> Study:
        return load_study(self.study, self.is_quick, self.n_seeds)


class Failure(NamedTuple):
    """Why a worker gave up."""

    reason: str


def run_study(
    place: Place, arms: Sequence[str], results: Path, n_processes: int, watch: Watch
) -> list[Row]:
    """Every run of these arms that `results` lacks, and all rows then.

    Raises:
        ValueError: rows of another study or other tokens, an arm that is not possible, another
            command at work on the same study.
        RuntimeError: a worker was ended from outside.
    """
    study = place.load()
    rows = read_rows(results, study)
    n_workers = min(n_processes, n_left(study, rows, arms))
    with _alone(runs_folder(study, place.runs)), _workers(place, n_workers) as workers:
        while True:
            _assign(workers, due(study, rows, arms))
            busy = [worker for worker in workers if worker.trial is not None]
            if not busy:
                return rows
            watch.show(len(rows), n_left(study, rows, arms), [worker.step for worker in busy])
            for row in _received(busy):
                if rows and row.tokens != rows[0].tokens:
                    raise ValueError(f"the text is not that of the rows in {results}")
                rows.append(row)
                write_rows(results, rows)
                watch.finished(row, len(rows), n_left(study, rows, arms))


def runs_folder(study: Study, runs: Path) -> Path:
    """Runs of one version of a study, so that those of another are never taken for them."""
    return runs / study.name / study.fingerprint


class Worker:
    """A process that makes one run after the other."""

    def __init__(self, place: Place):
        context = multiprocessing.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(child, place), daemon=True)
        self.process.start()
        child.close()
        self.trial: Trial | None = None
        self.step = 0

    def assign(self, trial: Trial) -> None:
        self.trial, self.step = trial, 0
        self.pipe.send(trial)

    def receive(self) -> Row | None:
        """The row of the run, if it is done."""
        try:
            message = self.pipe.recv()
        except EOFError:
            self.process.join()
            name = self.trial.name if self.trial else "a run"
            code = self.process.exitcode
            raise RuntimeError(f"the process of {name} ended with status {code}") from None
        if isinstance(message, Failure):
            raise ValueError(message.reason)
        if isinstance(message, Row):
            self.trial = None
            return message
        self.step = message
        return None

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
    try:
        _work(pipe, place)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the command is gone
    except (ValueError, OSError, ModuleNotFoundError) as error:
        pipe.send(Failure(str(error)))


def _work(pipe: Connection, place: Place) -> None:
    trial = pipe.recv()
    from transformers.utils import logging

    from attnres.experiment.trial import run_trial
    from attnres.train.data import load_data

    logging.disable_progress_bar()
    study = place.load()
    tokens = load_data(study.base.data)
    while True:
        pipe.send(run_trial(study, trial, runs_folder(study, place.runs), tokens, pipe.send))
        trial = pipe.recv()


def _assign(workers: list[Worker], trials: list[Trial]) -> None:
    under_way = {worker.trial for worker in workers}
    waiting = [trial for trial in trials if trial not in under_way]
    idle = [worker for worker in workers if worker.trial is None]
    for worker, trial in zip(idle, waiting, strict=False):
        worker.assign(trial)


def _received(busy: list[Worker]) -> Iterator[Row]:
    ready = wait([worker.pipe for worker in busy], MOST_SECONDS)
    for worker in busy:
        if worker.pipe in ready and (row := worker.receive()) is not None:
            yield row


@contextmanager
def _workers(place: Place, n_processes: int) -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    try:
        for _ in range(n_processes):
            workers.append(Worker(place))
        yield workers
    finally:
        for worker in workers:
            worker.stop()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """ValueError where another command runs the same study."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another command is at work in {folder}") from error
        yield
