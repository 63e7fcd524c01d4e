"""`attnres experiment`: one line for each bad input, and the files of a summary."""

import os
import signal
import warnings
from pathlib import Path

import pytest
from tiny_study import ARMS, finals, tuned, write_study

import attnres
from attnres.cli import main
from attnres.experiment.folder import load_study
from attnres.experiment.results import write_rows

ROOT = Path(attnres.__file__).parent.parent


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def folder(text, tmp_path):
    return write_study(tmp_path / "tiny", text)


def call(capsys, *arguments):
    """Exit status, standard output and standard error."""
    status = 0
    try:
        main(["experiment", *map(str, arguments)])
    except SystemExit as end:
        status = end.code or 0
    output = capsys.readouterr()
    return status, output.out, output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["other"], "no study 'other'"),
        (["tiny", "--processes", "0"], "--processes and --seeds are at least 1"),
        (["tiny", "--seeds", "0"], "--processes and --seeds are at least 1"),
        (["tiny", "--only", "red"], "no arm 'red'; there are: standard, block"),
        (["tiny", "--summary"], "there are no rows in"),
        (["tiny", "--summary", "--quick"], "there are no rows in"),
    ],
)
def test_bad_input_ends_with_one_line(capsys, folder, arguments, words):
    status, _, err = call(capsys, *arguments)
    assert status == 2
    assert err.startswith("attnres: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_summary_writes_table_and_figures_and_runs_nothing(capsys, folder):
    study = load_study(folder)
    rows = tuned(study, {"standard": (3.0, 2.0), "block": (2.0, 1.0)})
    for arm, shift in {"standard": 0.0, "block": -0.1}.items():
        rows += finals(study, arm, 1e-2, {0: 3.0 + shift, 1: 3.2 + 1.5 * shift})
    write_rows(folder / "results.csv", rows)
    before = (folder / "results.csv").read_bytes()
    status, out, err = call(capsys, folder, "--summary")
    assert (status, err) == (0, "")
    assert "block" in out
    assert "fewer than 3 seeds" in out
    assert (folder / "results.csv").read_bytes() == before
    assert (folder / "summary.md").read_text().startswith("# tiny\n")
    assert (folder / "summary.csv").read_text().count("\n") == 3
    names = sorted(path.name for path in (folder / "figures").iterdir())
    assert names == ["differences-dark.png", "differences.png"]
    assert not Path("runs").exists()


@pytest.mark.slow
def test_quick_leaves_the_folder_of_the_study_as_it_was(capsys, folder):
    before = sorted(folder.iterdir())
    status, out, err = call(capsys, folder, "--quick", "--only", *ARMS)
    assert (status, err) == (0, "")
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == before
    assert Path("runs/tiny-quick/summary.md").exists()
    assert out.count("tuning") == out.count("final") == 4
    assert "8/8 final" in out
