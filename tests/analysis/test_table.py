import math

import pytest
from rich.console import Console

from attnres.analysis.runs import load_runs
from attnres.analysis.table import Column, columns, rich_table, rich_tables, summary_table


def cells(folder, title):
    table = columns(summary_table(load_runs(folder)))
    return next(column.cells for column in table if column.title == title)


def test_figures_of_a_run(folder):
    standard, block, full = summary_table(load_runs(folder))
    assert standard.residual == "standard"
    assert block.residual == "attn_res, 4 blocks of 3"
    assert full.residual == "attn_res, Full"
    assert block.n_params == 2612345
    assert block.n_residual_params == 3072
    assert block.tokens_per_s == 9055.0
    assert block.peak_memory_bytes == 1234567890
    assert block.validation_loss == pytest.approx(3.9 + 3 * math.exp(-5))
    assert block.bits_per_byte == pytest.approx((3.9 + 3 * math.exp(-5)) / 2)
    assert block.difference == pytest.approx(-0.1)
    assert block.difference_step == 100
    assert (standard.difference, standard.difference_step) == (None, None)


def test_text_of_the_cells(folder):
    assert cells(folder, "Parameters")[1] == "2,612,345"
    assert cells(folder, "Peak memory")[1] == "1.15 GiB"
    assert cells(folder, "vs standard") == ["–", "−0.1000", "−0.1000"]  # noqa: RUF001  the sign that is printed
    assert cells(folder, "Steps")[0] == "100 of 100"


def test_an_unfinished_run_is_compared_at_the_step_that_both_have(folder, make):
    make.edit(folder / "block", lambda rows: [row for row in rows if row["step"] <= 70])
    block = summary_table(load_runs(folder))[1]
    assert block.difference_step == 50
    assert block.difference == pytest.approx(-0.1)
    assert block.peak_memory_bytes is None
    assert cells(folder, "Peak memory")[1] == "–"  # noqa: RUF001  the sign that is printed
    assert cells(folder, "vs standard")[1] == "−0.1000 (step 50)"  # noqa: RUF001  the sign that is printed
    assert cells(folder, "Steps")[1] == "70 of 100, unfinished"


def test_the_standard_run_of_the_same_seed_is_the_one_compared_with(folder, make):
    path = make.run(folder, "standard-1", seed=1)
    make.edit(path, lambda rows: [row | {"loss": 9.0} for row in rows])
    make.run(folder, "block-1", method="attn_res", sizes=make.blocks, seed=1)
    make.run(folder, "block-2", method="attn_res", sizes=make.blocks, seed=2)
    rows = {row.name: row for row in summary_table(load_runs(folder))}
    assert rows["standard-1"].difference is None
    assert rows["block-1"].difference == pytest.approx(3.9 + 3 * math.exp(-5) - 9)
    assert rows["block-2"].difference == pytest.approx(-0.1)


@pytest.mark.parametrize("field", [{"n_steps": 200}, {"data": {"corpus": "novels"}}])
def test_a_run_of_another_recipe_is_not_compared(folder, make, field):
    make.run(folder, "other", method="attn_res", sizes=make.blocks, **field)
    rows = {row.name: row for row in summary_table(load_runs(folder))}
    assert rows["other"].difference is None
    assert rows["block"].difference == pytest.approx(-0.1)
    (name,) = ("data.corpus" if "data" in field else "n_steps",)
    assert cells(folder, "vs standard")[2:] == ["−0.1000", f"not comparable: {name}"]  # noqa: RUF001  the sign that is printed


def test_how_the_residual_is_trained_is_no_obstacle(folder, make):
    make.run(folder, "other", method="attn_res", sizes=make.blocks, optim={"depth_lr_scale": 3.0})
    rows = {row.name: row for row in summary_table(load_runs(folder))}
    assert rows["other"].difference == pytest.approx(-0.1)


def test_a_loss_that_is_not_a_number_is_shown_as_such(folder, make):
    make.edit(folder / "block", lambda rows: [row | {"loss": math.nan} for row in rows])
    assert cells(folder, "Validation loss")[1] == "NaN"
    assert cells(folder, "vs standard")[1] == "NaN"


def test_terminal_table_of_the_demo_fits_80_columns(folder):
    console = Console(width=80, record=True, quiet=False)
    console.print(rich_table(summary_table(load_runs(folder))))
    text = console.export_text()
    assert "…" not in text
    for word in ("standard", "block", "full", "2,612,345", "attn_res, Full", "Validation loss"):
        assert word in text, word


def test_terminal_table_has_every_run_as_it_is_named(folder, make):
    console = Console(width=200, record=True, quiet=False)
    make.run(folder, "[red]x")
    console.print(rich_table(summary_table(load_runs(folder))))
    text = console.export_text()
    assert "[red]x" in text
    assert "attn_res, 4 blocks of 3" in text
    assert "2,612,345" in text


def test_a_terminal_has_several_tables_of_many_columns_and_all_of_them():
    names = [f"run{i}" for i in range(7)]
    shown = [Column(title="Figure", cells=["a long figure"], is_number=False)]
    shown += [Column(title=name, cells=["0.123"]) for name in names]
    tables = rich_tables(shown, 64)  # 13 letters, and room for three columns
    found = [[str(column.header) for column in table.columns] for table in tables]
    assert found == [["Figure", *names[i : i + 3]] for i in (0, 3, 6)]
    assert len(rich_tables(shown, 1)) == 7, "one at least"
