"""Workers: the same rows for any number of them, a kill that costs nothing, failures named."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_study import ARMS, write_study

import attnres
from attnres.experiment.results import Row, read_rows
from attnres.experiment.runner import Place, run_study, runs_folder
from attnres.experiment.study import Trial
from attnres.experiment.trial import run_trial
from attnres.train.data import load_data

TESTS = Path(__file__).parent.parent
MOODS = ("tokens_per_s", "commit")  # what a row says of the machine and the source tree


class Silent:
    """Remembers what it was told."""

    def __init__(self):
        self.rows: list[Row] = []
        self.failures: list[tuple[Trial, str]] = []
        self.shown: list[tuple[int, int]] = []

    def show(self, n_done, n_left, steps):
        self.shown.append((n_done, n_left))

    def finished(self, row, n_done, n_left):
        self.rows.append(row)

    def failed(self, trial, reason):
        self.failures.append((trial, reason))


@pytest.fixture
def paths(monkeypatch):
    """Processes find this package and the helpers of the tests."""
    root = str(Path(attnres.__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, str(TESTS)]))


def run(place, results, n_processes=1, arms=tuple(ARMS)):
    watch = Silent()
    return run_study(place, arms, results, n_processes, watch), watch


def losses(rows):
    return {row.trial: (row.tuning_loss, row.report_loss) for row in rows}


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_processes(text, tmp_path, paths):
    study = write_study(tmp_path / "tiny", text)
    one, watch = run(Place(study, False, tmp_path / "one"), tmp_path / "one.csv")
    two, _ = run(Place(study, False, tmp_path / "two"), tmp_path / "two.csv", 2)
    assert losses(one) == losses(two)
    assert len(losses(one)) == len(one) == 2 * (2 + 2)
    assert read_rows(tmp_path / "one.csv", Place(study, False, tmp_path).load()) == one
    assert watch.rows == one
    assert {n_done + n_left for n_done, n_left in watch.shown} == {8}
    again, watch = run(Place(study, False, tmp_path / "one"), tmp_path / "one.csv")
    assert (again, watch.rows, watch.shown) == (one, [], [])


@pytest.mark.slow
def test_a_killed_study_goes_on_to_the_same_rows(text, tmp_path, paths):
    study = write_study(tmp_path / "tiny", text, n_steps=60)
    place = Place(study, False, tmp_path / "runs")
    command = [sys.executable, "-m", "attnres", "experiment", str(study)]
    command += ["--folder", str(place.runs), "--processes", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    checkpoint = runs_folder(place.load(), place.runs) / "tuning-block-lr0.01-seed100/checkpoint"
    _wait(lambda: any(checkpoint.glob("step-*/manifest.json")))
    (worker,) = _children(process.pid, "spawn_main")
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait(lambda: not Path(f"/proc/{worker}").exists())
    assert any(checkpoint.glob("step-*")), "the run was over before it was killed"
    assert len(read_rows(study / "results.csv", place.load())) == 3
    resumed, _ = run(place, study / "results.csv")
    trial = Trial("tuning", "block", 1e-2, 100)
    tokens = load_data(place.load().base.data)
    whole = run_trial(place.load(), trial, tmp_path / "whole", tokens)
    assert losses(resumed)[trial] == (whole.tuning_loss, whole.report_loss)
    assert len(losses(resumed)) == len(resumed) == 2 * (2 + 2)


@pytest.mark.slow
def test_an_arm_that_fails_is_named_and_the_others_are_run(text, tmp_path, paths):
    arms = {"standard": "standard", "bad": "attn_res:n_blocks=99"}
    place = Place(write_study(tmp_path / "tiny", text, arms), False, tmp_path / "runs")
    with pytest.raises(ValueError, match=r"arm 'bad': .*99"):
        run(place, tmp_path / "rows.csv", arms=tuple(arms))
    with (tmp_path / "rows.csv").open(newline="") as stream:
        assert [line["arm"] for line in csv.DictReader(stream)] == ["standard"] * 4


@pytest.mark.slow
def test_an_arm_whose_worker_is_killed_is_named_and_the_others_are_run(text, tmp_path, paths):
    study = write_study(tmp_path / "tiny", text, n_steps=200)
    command = [sys.executable, "-m", "attnres", "experiment", str(study)]
    command += ["--folder", str(tmp_path / "runs"), "--processes", "1"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe)
    _wait(lambda: any((tmp_path / "runs").glob("tiny/*/*/metrics.jsonl")))
    (worker,) = _children(process.pid, "spawn_main")
    os.kill(worker, signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "arm 'standard': the process of tuning-standard-lr0.001-seed100 ended with" in err
    assert "status -9; the same command goes on from there" in err
    assert err.count("\n") == 1, err
    rows = read_rows(study / "results.csv", Place(study, False, tmp_path).load())
    assert [row.arm for row in rows] == ["block"] * 4
    assert "Not finished: standard." in out


@pytest.mark.parametrize("shared", ["runs", "rows"])
def test_two_commands_do_not_run_one_study(shared, text, tmp_path):
    import fcntl

    place = Place(write_study(tmp_path / "tiny", text), False, tmp_path / "runs")
    folder = runs_folder(place.load(), place.runs)
    folder.mkdir(parents=True)
    file = {"runs": folder / ".lock", "rows": tmp_path / "rows.lock"}[shared]
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=f"another command is at work .*{file.name}"):
            run(place, tmp_path / "rows.csv")


def _wait(condition, most_s=600):
    end = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def _children(pid: int, words: str) -> list[int]:
    """Processes of this parent whose command has these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if parent == pid and words in command:
            found.append(int(path.name))
    return found
