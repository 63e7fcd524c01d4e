"""The summary of a study as a table: for a terminal, for a page and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from attnres.analysis.table import MISSING, Column, number_text, rich_columns
from attnres.analysis.table import to_markdown as table_to_markdown
from attnres.experiment.paired import Difference
from attnres.experiment.study import Study
from attnres.experiment.summary import ArmSummary, notes

if TYPE_CHECKING:
    from rich.table import Table

IN_A_TERMINAL = ("Arm", "Loss", "Minus standard", "Seeds", "Rate", "Paper: minus standard")


def columns(study: Study, arms: Sequence[ArmSummary]) -> list[Column]:
    """The table as text, for a page or a terminal."""
    own = [
        Column(title="Arm", cells=[each.arm for each in arms], is_number=False),
        Column(title="Loss", cells=[number_text(each.mean, ".4f") for each in arms]),
        Column(title="sd", cells=[number_text(each.sd, ".4f") for each in arms]),
        *differences(study, arms),
        Column(title="Seeds", cells=[_seeds(each) for each in arms]),
        Column(title="Rate", cells=[_rate(each) for each in arms]),
        Column(title="Parameters", cells=[f"{each.n_params:,}" for each in arms]),
        Column(title="Of residual", cells=[f"{each.n_residual_params:,}" for each in arms]),
        Column(title="Tokens/s", cells=[number_text(each.tokens_per_s, ",.0f") for each in arms]),
    ]
    if all(each.paper is None for each in arms):
        return own
    return [
        *own,
        Column(title="Paper: loss", cells=[number_text(each.paper, ".3f") for each in arms]),
        Column(
            title="Paper: minus standard",
            cells=[number_text(each.paper_difference, "+z.3f") for each in arms],
        ),
    ]


def differences(study: Study, arms: Sequence[ArmSummary]) -> list[Column]:
    """From "standard" and, where the study names one, from another arm."""
    columns = [
        Column(title="Minus standard", cells=[_difference_text(each.difference) for each in arms])
    ]
    if study.beside is not None:
        beside = [_difference_text(each.beside) for each in arms]
        columns.append(Column(title=f"Minus {study.beside}", cells=beside))
    return columns


def rich_table(study: Study, arms: Sequence[ArmSummary]) -> "Table":
    """The table for a terminal, where 80 characters hold some of the columns; nothing is cut."""
    every = columns(study, arms)
    return rich_columns([column for column in every if column.title in IN_A_TERMINAL])


def to_csv(study: Study, arms: Sequence[ArmSummary]) -> str:
    """One line an arm, numbers in full; the last column names the arm that `beside` is from."""
    stream = io.StringIO()
    rows = [_flat(each) | {"beside_arm": study.beside or ""} for each in arms]
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def to_markdown(study: Study, arms: Sequence[ArmSummary]) -> str:
    """The table and its notes, as a page."""
    table = table_to_markdown(columns(study, arms))
    return "\n".join([f"# {study.name}", "", table, *notes(study, arms)]) + "\n"


def _difference_text(difference: Difference | None) -> str:
    if difference is None:
        return MISSING
    mean = number_text(difference.mean, "+z.4f")
    return mean if difference.half_width is None else f"{mean} ± {difference.half_width:.4f}"


def _seeds(each: ArmSummary) -> str:
    return (
        f"{each.n_seeds - each.n_diverged} of {each.n_seeds}"
        if each.n_diverged
        else str(each.n_seeds)
    )


def _rate(each: ArmSummary) -> str:
    return MISSING if each.lr is None else f"{each.lr:g}"


def _flat(each: ArmSummary) -> dict[str, Any]:
    values = {field.name: getattr(each, field.name) for field in fields(each)}
    mean, half_width, n_pairs = values.pop("difference") or (None, None, None)
    beside, beside_half_width, _ = values.pop("beside") or (None, None, None)
    differences = {"difference": mean, "half_width_95": half_width, "n_pairs": n_pairs}
    return values | differences | {"beside": beside, "beside_half_width_95": beside_half_width}
