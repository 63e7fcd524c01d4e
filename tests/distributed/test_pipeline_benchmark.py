"""The benchmark of pipelines runs, agrees with the plan, and prints no time of a wrong pipeline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 4, "n-blocks": 4, "dim": 16, "seq-len": 8, "microbatches": 2, "rounds": 1}
TINY = ["--no-link", *(f"--{name}={value}" for name, value in SIZES.items())]
WRONG = """
from attnres.distributed import stage

def backward(ctx, *gradients):
    return gradients[0], None, *[None for leaf in ctx.leaves]

stage._Deposits.backward = staticmethod(backward)
"""

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def run(file: Path, *places: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """In an environment with `changes`; over loopback, unless they change the path of programs."""
    paths = ":".join(str(place) for place in (ROOT, ROOT / "benchmarks", *places))
    sizes = TINY[1:] if "PATH" in changes else TINY
    command = [sys.executable, "benchmarks/pipeline.py", *sizes, "--json", str(file)]
    environment = {**os.environ, "PYTHONPATH": paths, **changes}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_it_measures_what_the_plan_says(tmp_path):
    done = run(tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    assert "own blocks too" in done.stdout
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["keep"] for row in rows] == ["nothing", "received", "all"]
    sent = [row["sent_bytes"] for row in rows]
    assert sent == [row["planned_bytes"] for row in rows]
    assert sent[0] > sent[1] > sent[2]


def test_it_prints_no_time_of_a_wrong_pipeline(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WRONG)  # run as every rank starts
    done = run(tmp_path / "found.json", tmp_path)
    assert done.returncode
    assert "no times: ranks ended with" in done.stderr
    assert "gradient errs by" in done.stderr
    assert not (tmp_path / "found.json").exists()
    assert "predicted" not in done.stdout


def test_a_machine_that_cannot_slow_a_link_is_told_in_a_line(tmp_path):
    done = run(tmp_path / "found.json", PATH=str(tmp_path))
    assert done.returncode
    assert done.stderr.startswith("a slow link needs root and ")
    assert done.stderr.endswith("; --no-link measures over loopback\n")
    assert done.stderr.count("\n") == 1
