"""metrics.jsonl, cut off or not ours: rows as they were written, or the line that is none."""

import json

import pytest
from drawn import JSON, assert_one_line
from hypothesis import example, given
from hypothesis import strategies as st

from attnres.analysis.runs import load_run
from attnres.analysis.table import summary_table
from attnres.train.run_folder import RunFolder

STEPS = st.integers(0, 12)
NUMBERS = st.floats() | st.integers()
ROWS = st.builds(
    lambda kind, step, loss: {"kind": kind, "step": step, "loss": loss},
    st.sampled_from(["train", "validation", "end"]),
    STEPS,
    NUMBERS,
)
WHOLE = ROWS.map(lambda row: json.dumps(row).encode() + b"\n")
NESTED = b"[" * 100_000
FOREIGN = (
    st.binary(min_size=1, max_size=12)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda row, key, value: json.dumps(row | {key: value}).encode(),
        ROWS,
        st.sampled_from(["kind", "step", "loss"]),
        JSON,
    )
    | st.sampled_from([NESTED, b"\0" * 9, b'{"kind": "train", "step": 1, "loss": "\xff"}'])
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipe.json").write_text('{"n_steps": 12}')
    return tmp_path


def rows_of(lines):
    return [json.loads(line) for line in lines]


def last_wins(rows):
    """By kind; of rows that a resumed run repeats the later ones."""
    kept: dict[str, list] = {}
    for row in rows:
        before = [each for each in kept.get(row["kind"], []) if each["step"] < row["step"]]
        kept[row["kind"]] = [*before, row]
    return kept


@given(lines=st.lists(WHOLE, max_size=5), cut=st.integers(0, 40))
def test_rows_are_read_without_the_one_that_is_cut_off(folder, lines, cut):
    rest = json.dumps({"kind": "train", "step": 99, "loss": 0.5}).encode()[:cut]
    (folder / "metrics.jsonl").write_bytes(b"".join(lines) + rest)
    assert str(load_run(folder).metrics) == str(last_wins(rows_of(lines)))  # NaN is not itself


@given(lines=st.lists(WHOLE, max_size=5), step=STEPS, cut=st.integers(0, 60))
def test_a_run_goes_on_from_the_whole_rows_up_to_its_step(folder, lines, step, cut):
    file = folder / "metrics.jsonl"
    file.write_bytes(b"".join(lines) + json.dumps({"kind": "train", "step": 1}).encode()[:cut])
    RunFolder(folder, {"n_steps": 12}).cut_metrics(step)
    later = [i for i, row in enumerate(rows_of(lines)) if row["step"] > step]
    assert file.read_bytes() == b"".join(lines[: later[0] if later else len(lines)])


@given(lines=st.lists(WHOLE, max_size=3), foreign=FOREIGN, after=st.lists(WHOLE, max_size=2))
@example(lines=[], foreign=b'{"kind": ["train"], "step": 1}', after=[])
@example(lines=[], foreign=b'{"kind": "train", "step": 1, "loss": "low"}', after=[])
@example(lines=[], foreign=NESTED, after=[])
def test_a_foreign_line_is_read_as_a_row_or_named(folder, lines, foreign, after):
    file = folder / "metrics.jsonl"
    before = b"".join([*lines, foreign.replace(b"\n", b" ") + b"\n", *after])
    file.write_bytes(before)
    try:
        run = load_run(folder)
    except ValueError as error:
        assert_one_line(error, f"line {len(lines) + 1} of {file}")
        with pytest.raises(ValueError, match=f"line {len(lines) + 1} of "):
            RunFolder(folder, {"n_steps": 12}).cut_metrics(12)
        assert file.read_bytes() == before
        return
    summary_table([run])
    RunFolder(folder, {"n_steps": 12}).cut_metrics(12)
    assert file.read_bytes() in (before, b"".join(line for line in before.splitlines(True)
                                                  if line.strip()))  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "train", "step": 1, "loss": "low"},
        {"kind": "validation", "step": 1, "loss": [1.0]},
        {"kind": "probe", "step": 1, "weights": [["a"]]},
        {"kind": "start", "step": 0, "n_params": {}},
        {"kind": ["train"], "step": 1},
        {"kind": "train", "step": True},
        {"step": 1},
    ],
)
def test_a_row_with_what_is_no_figure_is_named(folder, row):
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"line 1 of .* is not a metric"):
        load_run(folder)


@given(data=st.binary(max_size=60))
def test_a_file_of_anything_is_no_traceback(folder, data):
    file = folder / "metrics.jsonl"
    file.write_bytes(data)
    run = RunFolder(folder, {"n_steps": 12})
    assert not run.is_done()
    for read in (lambda: load_run(folder), lambda: run.cut_metrics(12)):
        try:
            read()
        except ValueError as error:
            assert_one_line(error, file)
    run.cut_metrics(None)
    assert file.read_bytes() == b""


@given(text=st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()))
@example(text=NESTED)
def test_a_recipe_that_is_none_is_named(tmp_path, text):
    (tmp_path / "recipe.json").write_bytes(text)
    for read in (lambda: load_run(tmp_path), lambda: RunFolder(tmp_path, {"n_steps": 12})):
        try:
            read()
        except ValueError as error:
            assert_one_line(error, tmp_path)
