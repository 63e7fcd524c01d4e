"""The runs of a study as a list, so that each may be a job of its own on another machine.

All runs that tune come first, then the final ones, whose rate is what the tuning has chosen by
then. A number is the same run whatever has been run already. The machines share the folder of the
runs and that of the rows.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from attnres.experiment.locks import alone, beside, in_turn
from attnres.experiment.results import Row, best_lr, read_rows, write_rows
from attnres.experiment.runner import Place, check_tokens, loaded, runs_folder
from attnres.experiment.study import Phase, Study, Trial, trials
from attnres.train.run_folder import write_atomically

ROW = "row.json"  # in the folder of a run, until and after it is in the rows


class Entry(NamedTuple):
    """One run of the list; the rate of a final one is not known before the tuning is done."""

    place: Place
    results: Path
    phase: Phase
    arm: str
    lr: float | None
    seed: int

    @property
    def words(self) -> str:
        rate = "at the best rate" if self.lr is None else f"rate {self.lr:g}"
        point = f"{self.place.point} " if self.place.point else ""
        return f"{point}{self.phase} {self.arm}, {rate}, seed {self.seed}"


class Part(NamedTuple):
    """The study at one point of a sweep, or the study; where its rows go."""

    place: Place
    study: Study
    arms: Sequence[str]
    results: Path


def entries(parts: Sequence[Part]) -> list[Entry]:
    """Every run of these arms."""
    tuning, final = list[Entry](), list[Entry]()
    for place, study, arms, results in parts:
        for arm in arms:
            runs = trials(study, arm, None)
            tuning += [Entry(place, results, t.phase, arm, t.lr, t.seed) for t in runs]
        for seed in study.seeds:
            final += [Entry(place, results, "final", arm, None, seed) for arm in arms]
    return tuning + final


def trial_of(entry: Entry, study: Study, rows: Sequence[Row]) -> Trial | None:
    """The run itself; None where the arm diverged at every rate, so that there is none.

    Raises:
        ValueError: a final run whose rate is not chosen yet.
    """
    if entry.lr is not None:
        return Trial(entry.phase, entry.arm, entry.lr, entry.seed)
    lr = best_lr(study, rows, entry.arm)
    if lr is not None:
        return Trial("final", entry.arm, lr, entry.seed)
    tuned_by = study.tuned_by(entry.arm)
    done = {row.trial for row in rows}
    lacking = [trial for trial in trials(study, tuned_by, None) if trial not in done]
    if lacking:
        raise ValueError(
            f"{entry.words}: its rate is not chosen yet, for {len(lacking)} of "
            f"{len(study.learning_rates)} runs that tune {tuned_by} are not done"
        )
    return None


def is_done(entry: Entry, study: Study, rows: Sequence[Row]) -> bool:
    """Whether its row is there."""
    lr = best_lr(study, rows, entry.arm) if entry.lr is None else entry.lr
    return any(row.trial == (entry.phase, entry.arm, lr, entry.seed) for row in rows)


def run_entry(entry: Entry, report: Callable[[int], None] = lambda step: None) -> Row | None:
    """Run it, or go on where it was stopped; its row is then among the rows. None as in `trial_of`.

    Any number of such calls may go on at once, of the same run too: the second is refused.

    Raises:
        ValueError: a run that is under way or cannot be made, rows of another study.
    """
    place, results = entry.place, entry.results
    study = place.load()
    folder = runs_folder(study, place.runs)
    with ExitStack() as stack:
        for lock in (folder / ".lock", results.with_suffix(".lock")):
            stack.enter_context(beside(lock))
        rows = merge(study, folder, results)
        trial = trial_of(entry, study, rows)
        if trial is None:
            return None
        stack.enter_context(alone(folder / f".lock-{trial.name}"))
        found = next((row for row in rows if row.trial == trial), None)
        if found is not None:
            return found
        row = _run(place, trial, folder, report)
        write_atomically(folder / trial.name / ROW, json.dumps(asdict(row), indent=1) + "\n")
        merge(study, folder, results)
        return row


def merge(study: Study, folder: Path, results: Path) -> list[Row]:
    """All rows, with those of finished runs in `folder` that the file has lacked until now."""
    with in_turn(results.with_suffix(".merge.lock")):
        rows = read_rows(results, study)
        done = {row.trial for row in rows}
        files = sorted(folder.glob(f"*/{ROW}"))
        new = [Row(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
        new = [row for row in new if row.trial not in done and row.arm in study.arms]
        for row in new:
            check_tokens(row, rows, results)
            rows.append(row)
        if new:
            write_rows(results, rows)
        return rows


def _run(place: Place, trial: Trial, folder: Path, report: Callable[[int], None]) -> Row:
    from attnres.experiment.trial import run_trial

    study, tokens = loaded(place)
    return run_trial(study, trial, folder, tokens, report)
