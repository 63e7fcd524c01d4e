"""The rows of a study: results.csv, one line a run, and which runs it still lacks."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from attnres.experiment.study import Phase, Study, Trial, trials
from attnres.residual import parse_residual
from attnres.train.run_folder import write_atomically


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run and what came out of it; losses in nats a token, infinite where it diverged."""

    phase: Phase
    arm: str
    residual: str  # as `parse_residual` reads it
    lr: float
    seed: int
    tuning_loss: float  # of the held-out part that chooses the rate
    report_loss: float  # of the other part
    n_params: int
    n_residual_params: int
    tokens_per_s: float  # median over training
    fingerprint: str  # of the study
    tokens: str  # fingerprint of the text as tokens
    torch_version: str
    commit: str  # + where the source tree was changed

    @property
    def trial(self) -> Trial:
        return Trial(self.phase, self.arm, self.lr, self.seed)


def read_rows(file: Path, study: Study) -> list[Row]:
    """All rows; ValueError where one is not of this study, or not a row."""
    if not file.exists():
        return []
    rows: list[Row] = []
    for number, cells in enumerate(_lines(file), start=2):
        where = f"line {number} of {file}"
        try:
            row = _row(cells)
        except ValueError as error:
            raise ValueError(f"{where} is no row of a study: {error}") from error
        _check(row, rows, study, where)
        rows.append(row)
    return rows


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """The whole file, or the old one stays."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [each.name for each in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, stream.getvalue())


def best_lr(study: Study, rows: Sequence[Row], arm: str) -> float | None:
    """The rate of lowest loss on the tuning part; None before all are tried, or if all diverged."""
    arm = study.tuned_by(arm)
    tried = {row.lr: row.tuning_loss for row in rows if row.arm == arm and row.phase == "tuning"}
    if not set(study.learning_rates) <= set(tried):
        return None
    lr = min(study.learning_rates, key=lambda lr: (tried[lr], lr))
    return lr if math.isfinite(tried[lr]) else None


def due(study: Study, rows: Sequence[Row], arms: Sequence[str]) -> list[Trial]:
    """What can be run now: first all that tunes, then seed by seed, so that arms stay paired."""
    done = {row.trial for row in rows}
    possible = [trial for arm in arms for trial in trials(study, arm, best_lr(study, rows, arm))]
    found = [trial for trial in possible if trial not in done]
    seeds = (study.tuning_seed, *study.seeds)
    return sorted(found, key=lambda trial: seeds.index(trial.seed))


def n_left(study: Study, rows: Sequence[Row], arms: Sequence[str]) -> int:
    """Runs to go, those with every seed of an arm that is not tuned yet among them."""
    done = {row.trial for row in rows}
    left = 0
    for arm in arms:
        lr = best_lr(study, rows, arm)
        left += sum(trial not in done for trial in trials(study, arm, lr))
        tuned = all(trial in done for trial in trials(study, study.tuned_by(arm), None))
        left += 0 if tuned else len(study.seeds)
    return left


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is no text of comma-separated values: {error}") from error


def _row(cells: dict[str, Any]) -> Row:
    if None in cells:  # where csv puts what has no column
        raise ValueError("a cell too many")
    row = Row(**{each.name: _cell(each, cells.get(each.name)) for each in fields(Row)})
    if row.phase not in get_args(Phase):
        raise ValueError(f"there is no phase {row.phase!r}")
    if math.isnan(row.tuning_loss) or math.isnan(row.report_loss):
        raise ValueError("a loss is no number")
    return row


def _cell(column: Field[Any], text: str | None) -> Any:
    if not isinstance(text, str):
        raise ValueError(f"there is no {column.name}")
    kind: Any = column.type
    return kind(text) if kind in (int, float) else text


def _check(row: Row, before: Sequence[Row], study: Study, where: str) -> None:
    if row.fingerprint != study.fingerprint:
        raise ValueError(
            f"{where} is of another base recipe or version of study {study.name!r}: its "
            f"fingerprint is {row.fingerprint}, now {study.fingerprint}; move the file away to "
            "run all anew"
        )
    if before and row.tokens != before[0].tokens:
        raise ValueError(
            f"{where} was run on other tokens than the first row: {row.tokens}, not "
            f"{before[0].tokens}"
        )
    if row.trial in {each.trial for each in before}:
        raise ValueError(f"{where} is another row of {row.trial.name}")
    if row.arm in study.arms and not _is_same(row.residual, study, row.arm):
        raise ValueError(
            f"{where}: arm {row.arm!r} was run as {row.residual!r}, the study now has "
            f"{study.arms[row.arm]!r}"
        )


def _is_same(text: str, study: Study, arm: str) -> bool:
    """Compared as configs: a setting that the text does not name has its default."""
    try:
        expected = study.residual(arm)
    except ValueError:  # an arm of a method that is not here; its rows are from where it is
        return True
    try:
        return parse_residual(text) == expected
    except ValueError:
        return False
