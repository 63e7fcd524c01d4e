"""One row a run: what it cost and how well it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnres.analysis.runs import Run, differing_fields, entry
from attnres.layout import UNITS

if TYPE_CHECKING:
    from rich.table import Table

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
LETTERS_A_COLUMN = 16  # of a terminal: a figure, and the name of a run in two lines
OF_THE_RESIDUAL = ("model.residual.", "optim.depth_")  # the standard one has nothing to train


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """The figures of a run; None is a figure that the run has not written."""

    name: str
    residual: str
    n_params: int | None
    n_residual_params: int | None
    tokens_per_s: float | None
    peak_memory_bytes: int | None
    validation_loss: float | None
    bits_per_byte: float | None
    difference: float | None  # validation loss less that of the standard run, same step
    difference_step: int | None
    obstacles: list[str]  # recipe fields for which no standard run can be compared with
    n_steps_done: int
    n_steps: int | None
    is_finished: bool


def summary_table(runs: Sequence[Run]) -> list[SummaryRow]:
    return [_summary_row(run, runs) for run in runs]


def _summary_row(run: Run, runs: Sequence[Run]) -> SummaryRow:
    start, end = run.last("start") or {}, run.last("end") or {}
    validation = run.last("validation") or {}
    difference_step, difference = _difference(run, standard_for(run, runs))
    return SummaryRow(
        name=run.name,
        residual=residual_words(run),
        n_params=start.get("n_params"),
        n_residual_params=start.get("n_residual_params"),
        tokens_per_s=run.median("train", "tokens_per_s"),
        peak_memory_bytes=end.get("peak_memory_bytes"),
        validation_loss=validation.get("loss"),
        bits_per_byte=validation.get("bits_per_byte"),
        difference=difference,
        difference_step=difference_step,
        obstacles=_obstacles(run, runs),
        n_steps_done=run.n_steps_done,
        n_steps=run.n_steps,
        is_finished=run.is_finished,
    )


def standard_for(run: Run, runs: Sequence[Run]) -> Run | None:
    """The standard run of the same recipe, of the same seed if there is one; None for itself."""
    standards = [other for other in runs if other.is_standard and not _unlike(run, other)]
    same_seed = [other for other in standards if other.seed == run.seed]
    standard = next(iter(same_seed or standards), None)
    return None if standard is run else standard


def _unlike(run: Run, other: Run) -> list[str]:
    """Recipe fields that differ, other than the residual, how it is trained, and the seed."""
    return [
        field
        for field in differing_fields([run, other])
        if not field.startswith(OF_THE_RESIDUAL) and field.rpartition(".")[2] != "seed"
    ]


def _obstacles(run: Run, runs: Sequence[Run]) -> list[str]:
    """Where no standard run can be compared with, the fields in which the nearest differs."""
    return min((_unlike(run, other) for other in runs if other.is_standard), key=len, default=[])


def differences(run: Run, standard: Run) -> dict[int, float]:
    """Validation loss less that of the standard run, at the steps that both have."""
    theirs = dict(zip(*standard.column("validation", "loss"), strict=True))
    ours = zip(*run.column("validation", "loss"), strict=True)
    return {step: loss - theirs[step] for step, loss in ours if step in theirs}


def _difference(run: Run, standard: Run | None) -> tuple[int | None, float | None]:
    if standard is None:
        return None, None
    shared = differences(run, standard)
    return max(shared.items(), default=(None, None))


def residual_words(run: Run) -> str:
    """The residual of a run, with the layout of its blocks and what else was set."""
    return ", ".join([run.method, *_layout_words(run.layout_sizes), *settings_of(run)])


def _layout_words(sizes: Sequence[int]) -> list[str]:
    if not sizes:
        return []
    if max(sizes) == 1:
        return ["Full"]
    span = " or ".join(str(size) for size in sorted(set(sizes)))
    return [f"{len(sizes)} {'block' if len(sizes) == 1 else 'blocks'} of {span}"]


def settings_of(run: Run) -> list[str]:
    """Settings of a residual that its layout does not show."""
    settings = entry(run.recipe, "model.residual", {})
    shown = ("method", "eps", *UNITS)
    return [f"{name}={value}" for name, value in settings.items() if name not in shown]


@dataclass(frozen=True, kw_only=True)
class Column:
    title: str
    cells: list[str]
    is_number: bool = True


def columns(rows: Sequence[SummaryRow]) -> list[Column]:
    """The table as text, for a page or a terminal."""
    return [
        Column(title="Run", cells=[row.name for row in rows], is_number=False),
        Column(title="Residual", cells=[row.residual for row in rows], is_number=False),
        Column(title="Parameters", cells=[number_text(row.n_params, ",") for row in rows]),
        Column(
            title="Added by residual",
            cells=[number_text(row.n_residual_params, ",") for row in rows],
        ),
        Column(title="Tokens/s", cells=[number_text(row.tokens_per_s, ",.0f") for row in rows]),
        Column(title="Peak memory", cells=[_memory(row.peak_memory_bytes) for row in rows]),
        Column(
            title="Validation loss", cells=[number_text(row.validation_loss, ".4f") for row in rows]
        ),
        Column(
            title="Bits per byte", cells=[number_text(row.bits_per_byte, ".4f") for row in rows]
        ),
        Column(title="vs standard", cells=[_difference_text(row) for row in rows]),
        Column(title="Steps", cells=[_steps(row) for row in rows]),
    ]


def rich_table(rows: Sequence[SummaryRow]) -> Table:
    """The table for a terminal: a column a run, since 80 characters hold few; nothing is cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    names, *figures = columns(rows)
    table.add_column(names.title, overflow="fold")
    for name in names.cells:
        table.add_column(Text(name), justify="right", overflow="fold")
    for column in figures:
        table.add_row(column.title, *(Text(cell) for cell in column.cells))
    return table


def number_text(value: float | None, spec: str) -> str:
    """With the sign of a minus; the `z` of a spec keeps it from a zero."""
    if value is None:
        return MISSING
    return "NaN" if math.isnan(value) else format(value, spec).replace("-", MINUS)


def _memory(n_bytes: int | None) -> str:
    if n_bytes is None:
        return MISSING
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


def _difference_text(row: SummaryRow) -> str:
    if row.obstacles:
        return f"not comparable: {', '.join(row.obstacles)}"
    text = number_text(row.difference, "+z.4f")
    is_last = row.is_finished and row.difference_step == row.n_steps_done
    return text if row.difference is None or is_last else f"{text} (step {row.difference_step})"


def _steps(row: SummaryRow) -> str:
    steps = f"{row.n_steps_done:,} of {number_text(row.n_steps, ',')}"
    return steps if row.is_finished else f"{steps}, unfinished"


def rich_columns(shown: Sequence[Column]) -> Table:
    """Columns for a terminal; nothing is cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for column in shown:
        justify = "right" if column.is_number else "left"
        table.add_column(Text(column.title), justify=justify, overflow="fold")
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(Text, cells))
    return table


def rich_tables(shown: Sequence[Column], width: int) -> list[Table]:
    """As many tables as a terminal of so many letters needs, the first column leading each."""
    first, *others = shown
    n_letters = max(map(len, [first.title, *first.cells]))
    n = max(1, (width - n_letters) // LETTERS_A_COLUMN)
    return [rich_columns([first, *others[i : i + n]]) for i in range(0, len(others), n)]


def to_markdown(shown: Sequence[Column]) -> str:
    """Columns as a table of Markdown."""
    lines = [[column.title for column in shown]]
    lines.append(["---:" if column.is_number else "---" for column in shown])
    lines += [list(cells) for cells in zip(*(column.cells for column in shown), strict=True)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
