"""What befalls a run from outside: a second process, SIGTERM, a read-only folder, clocks."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest
from call_command import call_command
from tiny_runs import (
    assert_same_run,
    checkpoints,
    interrupt_at,
    recipe,
    rows,
    snapshot,
    write_text,
)

from attnres.train.loop import train
from attnres.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


def test_a_run_that_is_stopped_after_each_step_ends_as_if_it_had_not_been(text, tmp_path):
    own = recipe(text)
    assert train(own, tmp_path / "whole")
    for step in range(1, own.n_steps):
        assert not train(own, tmp_path / "stopped", stops=lambda: True)
        assert rows(tmp_path / "stopped", "train")[-1]["step"] == step
        assert checkpoints(tmp_path / "stopped")[-1] == f"step-{step:08}"
        assert not (tmp_path / "stopped" / "model").exists()
    assert train(own, tmp_path / "stopped", stops=lambda: True)  # its last step
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_second_process_is_refused_and_changes_nothing(text, tmp_path):
    own = recipe(text)
    first = RunFolder(tmp_path / "run", own.to_json())
    first.claim()
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"another process is at work on .*run: it has .*\.lock"):
        train(own, tmp_path / "run")
    assert snapshot(tmp_path) == before
    first.release()
    assert train(own, tmp_path / "run")


def test_a_run_lets_go_of_its_folder_however_it_ends(text, tmp_path):
    own = recipe(text)
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(own, tmp_path / "run", interrupt_at(2))
    assert stopped.traceback  # which keeps what the run held
    with (tmp_path / "run" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert train(own, tmp_path / "run")


def test_a_file_system_without_locks_is_no_hindrance(text, tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(95, os.strerror(95))  # EOPNOTSUPP

    monkeypatch.setattr(fcntl, "flock", no_locks)
    folder = RunFolder(tmp_path / "run", recipe(text).to_json())
    folder.claim()
    assert (tmp_path / "run" / "recipe.json").exists()


def test_clocks_that_jump_change_nothing(text, tmp_path, monkeypatch):
    own = recipe(text)
    train(own, tmp_path / "steady")
    jumps = count()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + (-1) ** next(jumps) * 1e8)
    train(own, tmp_path / "jumping")
    assert next(jumps) > 0
    assert_same_run(tmp_path / "jumping", tmp_path / "steady")
    assert all(row["tokens_per_s"] > 0 for row in rows(tmp_path / "jumping", "train"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder that not even root writes to")
def test_a_folder_that_takes_nothing_is_one_line(text, capsys):
    arguments = ["demo", "--data.path", text, "--data.tokenizer", "bytes", "--folder", "/proc/runs"]
    small = ["--model.dim", 32, "--model.n-layers", 1, "--model.n-heads", 2, "--model.n-kv-heads",
             2, "--model.mlp-dim", 32, "--seq-len", 32, "--batch-size", 2]  # fmt: skip
    status, _, err = call_command("train", [*arguments, *small], capsys)
    assert status == 2
    assert "/proc/runs" in err
    assert err.count("\n") == 1


SIGNALLED = """
import os, signal
from attnres.cli.training import Stop
stop = Stop()
signal.signal(signal.SIGTERM, stop.receive)
def ask(): os.kill(os.getpid(), signal.SIGTERM)
class Finaliser:
    def __del__(self): ask()
{then}
print("after the signal", stop())
"""


@pytest.mark.parametrize(
    ("then", "status", "said"),
    [
        ("ask()", 143, ""),
        ("Finaliser()", 143, ""),  # where Python drops an exception
        ("stop(); ask()", 0, "after the signal True\n"),
        ("stop(); ask(); ask()", 143, ""),
    ],
)
def test_sigterm_ends_a_process_at_once_before_its_first_step_or_the_second_time(
    then, status, said
):
    command = [sys.executable, "-c", SIGNALLED.format(then=then)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")


OWN = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from pathlib import Path
from tiny_runs import recipe
def steps(): return recipe(Path("words.txt"), n_steps=400, save_every=300)
"""


def command():
    return [sys.executable, "-m", "attnres", "train", "my_runs:steps"]


def started(path):
    """A training process that was halted once it had logged a step."""
    process = subprocess.Popen(command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (path.exists() and '"train"' in path.read_text()) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_0_and_the_same_command_resumes(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_runs.py").write_text(OWN)
    (tmp_path / "words.txt").write_text(text.read_text())
    run = tmp_path / "runs" / "tiny"
    process = started(run / "metrics.jsonl")
    second = subprocess.run(command(), capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "another process is at work on runs/tiny" in second.stderr
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    assert "stopped by SIGTERM, and saved in runs/tiny; the same command resumes" in out
    assert checkpoints(run)[-1] == f"step-{rows(run, 'train')[-1]['step']:08}"
    done = subprocess.run(command(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "runs").rename(tmp_path / "stopped")
    subprocess.run(command(), capture_output=True, check=True)
    assert_same_run(tmp_path / "stopped" / "tiny", run)
