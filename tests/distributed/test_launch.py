"""Runs that torchrun starts: who writes, who speaks, and what a killed or silent rank leaves."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import run_processes
from test_data_parallel import assert_close_runs
from tiny_runs import assert_same_run, checkpoints, recipe, rows

from attnres.train import checkpoint
from attnres.train.loop import train
from attnres.train.recipe import Recipe

pytestmark = pytest.mark.dist

FAULTS = '''
"""Recipes whose second rank comes to harm."""
import os, signal, time
from dataclasses import replace
from pathlib import Path
from tiny_runs import recipe
from attnres.distributed.stage import Stage
from attnres.train import loop, saver

OWN = recipe(Path("words.txt"), save_every=2, timeout_s=20)
MESH = replace(OWN, pipeline=2, n_accumulations=2, timeout_s=60)
IS_SECOND = os.environ.get("RANK") == "1"

def whole():
    return OWN

def at_step(number, harm, own=OWN):
    step = loop._step
    def harmed(run, i):
        if i == number and IS_SECOND:
            harm()
        return step(run, i)
    loop._step = harmed
    return own

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killed_in_a_step():
    return at_step(5, die)

def silent():
    return at_step(0, lambda: time.sleep(600))

def mesh():
    return MESH

def killed_in_a_save_on_a_mesh():
    killed_in_a_save()
    return MESH

def a_stage_fails():
    def fail():
        raise FloatingPointError("a wrong number")
    def harm():
        Stage._state_out = lambda self, *received: fail()
    return at_step(5, harm, MESH)

def killed_in_a_save():
    written = saver._written
    def harmed(begun, rng, draft):
        if draft.name.endswith("8") and IS_SECOND:
            die()
        return written(begun, rng, draft)
    saver._written = harmed
    return OWN

def another_on_each():
    return replace(OWN, seed=int(IS_SECOND))

def too_many_stages():
    return replace(MESH, virtual_stages=4, n_accumulations=4)
'''

MEET = '''
"""Two processes meet; the second is killed, and of those started anew one is late."""
import os, signal, sys, time
import torch.distributed as dist
from attnres.distributed import world

is_first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if not is_first_time and os.environ["RANK"] == sys.argv[1]:
    time.sleep(5)  # the other looks for it in the launcher's store
with world.joined("cpu", 20):
    dist.barrier()
    if is_first_time:
        if world.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    print(f"{world.rank()} ", end="")  # in one write
'''


@pytest.fixture
def launch(text, tmp_path):
    (tmp_path / "faults.py").write_text(FAULTS)
    root = Path(__file__).parents[2]
    environ = dict(os.environ, PYTHONPATH=f"{root}:{root / 'tests'}")

    def run(recipe: str, name: str, n_ranks: int = 2) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(n_ranks), "-m", "attnres", "train", f"faults:{recipe}"]
        command += ["--name", name, "--folder", str(tmp_path / "runs")]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
        )

    return run


def errors(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("attnres: error: ")]


def _train(rank: int, own: Recipe, path: Path) -> None:
    train(own, path)


def test_a_killed_rank_leaves_a_run_that_goes_on(launch, tmp_path, text):
    runs = tmp_path / "runs"
    assert launch("killed_in_a_step", "run").returncode != 0
    newest = checkpoint.newest(runs / "run" / "checkpoint")
    assert newest is not None
    assert newest.name in ("step-00000002", "step-00000004")  # the last is saved beside the step
    assert launch("killed_in_a_save", "run").returncode != 0
    newest = checkpoint.newest(runs / "run" / "checkpoint")
    assert newest is not None
    assert newest.name == "step-00000006"
    done = launch("whole", "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("; page: ") == done.stdout.count("step 10 of 10") == 1
    assert checkpoints(runs / "run") == ["step-00000008", "step-00000010"]
    run_processes(_train, 2, recipe(text, save_every=2), tmp_path / "whole")
    assert len(rows(runs / "run", "train")) == 10
    assert_same_run(runs / "run", tmp_path / "whole")


@pytest.mark.parametrize("late", [0, 1])
def test_processes_that_are_started_anew_do_not_look_for_dead_ones(tmp_path, late):
    (tmp_path / "meet.py").write_text(MEET)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command += ["--nproc-per-node", "2", str(tmp_path / "meet.py"), str(late)]
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1"]


def test_a_silent_rank_ends_the_job_in_limited_time(launch):
    start = time.monotonic()
    done = launch("silent", "run")
    assert done.returncode != 0
    assert time.monotonic() - start < 300
    (error,) = errors(done)
    assert "rank 0: another process ended or did not answer" in error


@pytest.mark.slow
def test_a_mesh_that_loses_a_rank_in_a_save_goes_on(launch, tmp_path, text):
    runs = tmp_path / "runs"
    assert launch("killed_in_a_save_on_a_mesh", "run", 4).returncode != 0
    newest = checkpoint.newest(runs / "run" / "checkpoint")
    assert newest is not None
    assert newest.name == "step-00000006"
    done = launch("mesh", "run", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 10 of 10") == 1
    train(recipe(text, save_every=2, n_accumulations=2), tmp_path / "one")
    assert_close_runs(runs / "run", tmp_path / "one", has_probes=False)


@pytest.mark.slow
def test_a_mesh_whose_stage_fails_says_so_once(launch, tmp_path):
    done = launch("a_stage_fails", "run", 4)
    assert done.returncode != 0
    (error,) = errors(done)
    words = "rank 1 failed in the forward of micro-batch 0 through sublayers 0 to 1"
    assert error.startswith(f"attnres: error: {words}")
    assert "FloatingPointError: a wrong number" in error
    assert checkpoint.newest(tmp_path / "runs" / "run" / "checkpoint") is not None


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("another_on_each", "the processes differ: seed is 0 on rank 0 and 1 on rank 1"),
        ("too_many_stages", "8 chunks are more than the model's 4 sublayers"),
    ],
    ids=["by the group", "by each alone"],
)
def test_what_cannot_run_is_said_once(launch, tmp_path, recipe, words):
    done = launch(recipe, "run")
    assert done.returncode != 0
    (error,) = errors(done)
    assert words in error
    assert not (tmp_path / "runs" / "run").exists()
