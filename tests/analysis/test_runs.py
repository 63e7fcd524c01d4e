import json
import math

import pytest

from attnres.analysis.runs import differing_fields, entry, load_runs
from attnres.train.run_folder import flatten


def test_runs_are_read_standard_first(folder):
    runs = load_runs(folder)
    assert [run.name for run in runs] == ["standard", "block", "full"]
    standard, block, full = runs
    assert standard.is_standard
    assert not block.is_standard
    assert block.layout_sizes == [3, 3, 3, 3]
    assert block.block_ends == [2, 5, 8, 11]
    assert full.block_ends == standard.block_ends == []
    assert [row["step"] for row in block.rows("validation")] == [50, 100]
    assert block.n_steps_done == block.n_steps == 100
    assert block.is_finished
    assert block.env["commit"] == "abc123"


def test_a_run_without_its_end_is_unfinished(folder, make):
    with (folder / "block" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    make.edit_text(folder / "block", lambda text: text.replace('"kind": "end"', '"kind": "gone"'))
    (block,) = (run for run in load_runs(folder) if run.name == "block")
    assert not block.is_finished
    assert block.rows("train")[-1]["step"] == 100


def test_a_run_that_has_only_a_recipe_is_empty(folder):
    (folder / "full" / "metrics.jsonl").unlink()
    (folder / "full" / "env.json").unlink()
    full = load_runs(folder)[-1]
    assert (full.n_steps_done, full.env, full.metrics) == (0, {}, {})


def test_a_resumed_run_keeps_the_later_lines(folder, make):
    def resume(rows):
        again = [row | {"loss": -1.0} for row in rows if row["kind"] == "train"]
        return rows + [row for row in again if 30 <= row["step"] <= 40]

    make.edit(folder / "standard", resume)
    steps, losses = load_runs(folder)[0].column("train", "loss")
    assert steps == [10, 20, 30, 40]
    assert losses[2:] == [-1.0, -1.0]


def test_not_a_number_is_read(folder, make):
    make.edit(folder / "standard", lambda rows: [row | {"loss": math.nan} for row in rows])
    assert math.isnan(load_runs(folder)[0].column("train", "loss")[1][0])


def test_a_broken_line_in_the_middle_is_named(folder, make):
    make.edit_text(folder / "block", lambda text: text.replace('"kind": "end"', '"kind" "end"'))
    with pytest.raises(ValueError, match=r"line 16 of .*block/metrics\.jsonl is not a metric"):
        load_runs(folder)


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_broken_recipe_is_named(folder, text):
    (folder / "block" / "recipe.json").write_text(text)
    with pytest.raises(ValueError, match=r"block/recipe\.json"):
        load_runs(folder)


@pytest.mark.parametrize("step", ["ten", None, [1], True])
def test_a_step_that_is_no_number_is_named(folder, make, step):
    make.edit(folder / "block", lambda rows: [*rows, rows[-1] | {"step": step}])
    with pytest.raises(ValueError, match=r"line 17 of .*block/metrics\.jsonl is not a metric"):
        load_runs(folder)


@pytest.mark.parametrize("n_steps", ["many", [1], 1.5, None])
def test_a_number_of_steps_that_is_none_is_named(folder, make, n_steps):
    make.run(folder, "odd", n_steps=100)
    file = folder / "odd" / "recipe.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_steps": n_steps}))
    with pytest.raises(ValueError, match=r"odd/recipe\.json: n_steps is "):
        load_runs(folder)


def test_no_folder_and_no_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no folder of runs at .*missing"):
        load_runs(tmp_path / "missing")
    with pytest.raises(ValueError, match="no run in "):
        load_runs(tmp_path)


def test_recipes_are_compared_field_by_field(folder):
    fields = differing_fields(load_runs(folder))
    assert fields == {
        "model.residual.method": ["standard", "attn_res", "attn_res"],
        "model.residual.n_blocks": [None, 4, 12],
    }


def test_dotted_paths():
    nested = {"a": {"b": {"c": 1}, "d": {}}, "e": [2]}
    assert flatten(nested) == {"a.b.c": 1, "a.d": {}, "e": [2]}
    assert entry(nested, "a.b.c") == 1
    assert entry(nested, "a.x.c", "none") == "none"
    assert entry(nested, "e.c") is None


def test_an_interrupted_write_is_not_an_error_but_a_later_one_is(folder):
    file = folder / "block" / "metrics.jsonl"
    file.write_text(json.dumps({"kind": "start", "step": 0}) + '\n{"kind"')
    assert load_runs(folder)[1].metrics["start"] == [{"kind": "start", "step": 0}]
    file.write_text(file.read_text() + "\n")
    with pytest.raises(ValueError, match="line 2"):
        load_runs(folder)
