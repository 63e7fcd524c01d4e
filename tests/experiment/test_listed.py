"""Runs of a study one by one, as jobs of an array: numbers that stay, rows that none loses."""

import json
import os
import signal
import stat
import subprocess
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tiny_study import make_row, make_study, tuned, write_study

import attnres
from attnres.cli import main
from attnres.experiment.listed import ROW, Entry, Part, entries, is_done, merge, trial_of
from attnres.experiment.locks import alone, beside
from attnres.experiment.results import read_rows, write_rows
from attnres.experiment.runner import Place, runs_folder
from attnres.experiment.study import Trial
from attnres.experiment.trial import run_trial
from attnres.train.data import load_data

ROOT = Path(attnres.__file__).parent.parent
MOODS = ("tokens_per_s", "commit")


def part(tmp_path, **changes) -> Part:
    study = make_study(**changes)
    place = Place(tmp_path / "made", False, tmp_path / "runs")
    return Part(place, study, tuple(study.arms), tmp_path / "results.csv")


def entry_of(found: Part, phase, arm, lr, seed) -> Entry:
    return Entry(found.place, found.results, phase, arm, lr, seed)


def test_what_tunes_has_the_first_numbers_and_seeds_come_in_turn(tmp_path):
    found = entries([part(tmp_path)])
    assert [e.phase for e in found] == ["tuning"] * 6 + ["final"] * 9
    assert [(e.arm, e.lr) for e in found[:4]] == [
        ("standard", 1.0), ("standard", 2.0), ("full", 1.0), ("full", 2.0)
    ]  # fmt: skip
    assert [(e.arm, e.seed) for e in found[6:10]] == [
        ("standard", 0), ("full", 0), ("block", 0), ("standard", 1)
    ]  # fmt: skip
    assert found[6].words == "final standard, at the best rate, seed 0"


def test_only_the_reference_tunes_where_its_rates_are_those_of_all(tmp_path):
    found = entries([part(tmp_path, rates_of_reference=True)])
    assert [e.arm for e in found if e.phase == "tuning"] == ["standard", "standard"]


def test_a_final_run_has_the_rate_that_the_tuning_chose(tmp_path):
    made = part(tmp_path)
    entry = entry_of(made, "final", "full", None, 1)
    rows = tuned(made.study, {"full": (3.0, 2.0)})
    assert trial_of(entry, made.study, rows) == Trial("final", "full", 2.0, 1)
    with pytest.raises(ValueError, match=r"1 of 2 runs that tune full are not done"):
        trial_of(entry, made.study, rows[:1])
    diverged = tuned(made.study, {"full": (float("inf"), float("inf"))})
    assert trial_of(entry, made.study, diverged) is None
    assert not is_done(entry, made.study, rows)
    rows.append(make_row(made.study, Trial("final", "full", 2.0, 1), 1.0))
    assert is_done(entry, made.study, rows)


def test_rows_of_finished_runs_are_taken_up_once(tmp_path):
    made = part(tmp_path)
    folder = runs_folder(made.study, made.place.runs)
    kept, *others = tuned(made.study, {"full": (3.0, 2.0), "block": (1.0, float("inf"))})
    write_rows(made.results, [kept])
    for row in others:
        (folder / row.trial.name).mkdir(parents=True)
        (folder / row.trial.name / ROW).write_text(json.dumps(asdict(row)))
    rows = merge(made.study, folder, made.results)
    assert {row.trial for row in rows} == {row.trial for row in (kept, *others)}
    assert merge(made.study, folder, made.results) == rows == read_rows(made.results, made.study)


def test_jobs_tolerate_each_other_and_no_command_that_has_the_study(tmp_path):
    lock = tmp_path / "x.lock"
    with (
        beside(lock),
        beside(lock),
        pytest.raises(ValueError, match="another command"),
        alone(lock),
    ):
        pass
    with alone(lock), pytest.raises(ValueError, match="another command"), beside(lock):
        pass


SBATCH = """#!/bin/bash
# Stands for Slurm: the elements of an array, two at once, and the number of the job.
while [[ $1 == --* ]]; do [[ $1 == --array=* ]] && range=${1#--array=}; shift; done
seq ${range%-*} ${range#*-} | SLURM=1 xargs -P 2 -I {} env SLURM_ARRAY_TASK_ID={} bash "$@" \\
  >> sbatch.out 2>> sbatch.err || true
echo 17
"""


def command_path(tmp_path) -> str:
    """A PATH with this interpreter's attnres, and with a stand-in for sbatch."""
    folder = tmp_path / "bin"
    folder.mkdir()
    attnres_command = f'#!/bin/bash\nexec {sys.executable} -m attnres "$@"\n'
    for name, text in {"attnres": attnres_command, "sbatch": SBATCH}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 | stat.S_IEXEC)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
def test_two_workers_over_the_list_give_the_rows_of_the_one_command(text, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    monkeypatch.setenv("PATH", command_path(tmp_path))
    monkeypatch.chdir(tmp_path)
    study = write_study(tmp_path / "tiny", text)
    done = subprocess.run(
        [str(ROOT / "experiments" / "submit.sh"), "tiny", "--only", "block"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path("sbatch.err").read_text() == ""
    place = Place(study, False, tmp_path / "runs")
    rows = read_rows(study / "results.csv", place.load())
    assert len(rows) == 2 + 2
    (study / "results.csv").rename(study / "array.csv")
    one = ["attnres", "experiment", "tiny", "--folder", "one", "--only", "block"]
    assert subprocess.run(one, capture_output=True).returncode == 0
    assert losses(read_rows(study / "results.csv", place.load())) == losses(rows)


def losses(rows):
    return {row.trial: (row.tuning_loss, row.report_loss) for row in rows}


@pytest.mark.slow
def test_a_cluster_of_this_machine_gives_the_same_rows(text, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    monkeypatch.chdir(tmp_path)
    study = write_study(tmp_path / "tiny", text)
    main(["experiment", "tiny", "--ray", "local", "--only", "standard"])
    assert capsys.readouterr().out.count("final standard") == 2
    load = Place(study, False, tmp_path / "runs").load
    rows = read_rows(study / "results.csv", load())
    assert len(rows) == 2 + 2
    trial, tokens = rows[0].trial, load_data(load().base.data)
    alone = run_trial(load(), trial, tmp_path / "alone", tokens)
    assert (rows[0].tuning_loss, rows[0].report_loss) == (alone.tuning_loss, alone.report_loss)


def test_without_ray_a_line_says_what_to_install(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.syspath_prepend(ROOT / "tests")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "tiny", text)
    with pytest.raises(SystemExit):
        main(["experiment", "tiny", "--ray", "local"])
    assert "--ray needs ray: pip install 'attention-residuals[ray]'" in capsys.readouterr().err


def test_bad_numbers_and_final_runs_before_their_time_end_with_a_line(
    text, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests")
    write_study(tmp_path / "tiny", text)
    handler, n_threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()

    def refusal(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["experiment", "tiny", *words])
        assert end.value.code == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        return err

    assert "there is no run 8; the numbers are 0 to 7" in refusal("--run", "8")
    assert "final standard, at the best rate, seed 0: its rate is not" in refusal("--run", "4")
    assert "--run and --ray are each" in refusal("--run", "1", "--list")
    main(["experiment", "tiny", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == "    4  final standard, at the best rate, seed 0"
    assert lines[-2:] == ["tuning: 0-3", "final: 4-7"]
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(n_threads)
