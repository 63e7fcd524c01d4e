"""The first command that a new user types, in processes of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import rows, snapshot

NAMES = ("standard", "block", "full")


def demo(folder):
    command = [sys.executable, "-m", "attnres", "demo", "--folder", str(folder)]
    return [*command, "--n-steps", "3"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The demo run once: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("first") / "runs"
    return folder, subprocess.run(demo(folder), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_demo_trains_three_runs_and_says_what_came_out(first):
    folder, done = first
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"report: {folder / 'report.html'}" in done.stdout.splitlines()
    assert (folder / "report.html").stat().st_size > 10_000
    assert re.search(r"^ *Run +standard +block +full *$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *Validation loss( +\d\.\d+){3} *$", done.stdout, re.MULTILINE)
    for name in NAMES:
        assert re.search(rf"^{name}: step 3 of 3, loss \d", done.stdout, re.MULTILINE)
        assert [row["step"] for row in rows(folder / name, "end")] == [3]


@pytest.mark.slow
def test_the_demo_run_again_trains_nothing_and_says_so(first):
    folder, _ = first
    before = {name: snapshot(folder / name) for name in NAMES}
    done = subprocess.run(demo(folder), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in NAMES:
        assert f"{name}: already done, 3 of 3 steps" in done.stdout
        assert snapshot(folder / name) == before[name]
    assert "report: " in done.stdout


@pytest.mark.slow
def test_the_demo_killed_in_the_middle_completes_when_run_again(first, tmp_path):
    whole, _ = first
    folder = tmp_path / "runs"
    process = subprocess.Popen(
        demo(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not (folder / "block" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "report.html").exists()
    done = subprocess.run(demo(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "standard: already done" in done.stdout
    for name in NAMES:
        found, expected = (
            [row["loss"] for row in rows(path / name) if "loss" in row] for path in (folder, whole)
        )
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.2, 1.0, 3.0])
def test_the_demo_stopped_at_any_moment_ends_at_once_with_its_child(tmp_path, signum, seconds):
    process = subprocess.Popen(
        demo(tmp_path)[:-2], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:  # multiprocessing's own, and the one that trains
        time.sleep(0.01)
    time.sleep(seconds)
    send = os.killpg if signum == signal.SIGINT else os.kill  # Ctrl-C reaches the whole group
    send(process.pid, signum)
    _, err = process.communicate(timeout=30)  # ends once no child holds the pipe
    assert process.returncode != 0
    assert b"Traceback" not in err


@pytest.mark.slow
@pytest.mark.browser
def test_the_report_of_the_demo_opens_in_a_browser(first, tmp_path):
    from browser import look_at

    folder, _ = first
    found = look_at((folder / "report.html").read_text("utf-8"), tmp_path)
    assert len(found["images"]) == 7
    assert all(natural > 0 and width > 0 for natural, width in found["images"])
    assert set(found["loads"]) <= {"data:"}
    assert found["overflow"] <= 0
