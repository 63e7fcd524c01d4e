"""What needs a GPU runs in one call: red tests print no time, the table comes last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STUB = """#!/bin/sh
case "$*" in
  *is_available*) echo "some GPU"; exit $GPU_STATUS ;;
  *pytest*) echo "tests on $ATTNRES_TEST_DEVICE"; exit $TESTS_STATUS ;;
  *gpu_depth_attention.py*) echo "table of $*" ;;
esac
"""


@pytest.fixture
def call(tmp_path):
    """The script with an interpreter that only says what it is asked."""
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def call(gpu: int, tests: int) -> tuple[int, list[str]]:
        statuses = {"GPU_STATUS": str(gpu), "TESTS_STATUS": str(tests)}
        done = subprocess.run(
            ["bash", BENCHMARKS / "gpu.sh", "--json", "rows.json"],
            env={**os.environ, "PYTHON": str(stub), **statuses},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    return call


def test_the_table_comes_last(call):
    status, lines = call(gpu=0, tests=0)
    assert status == 0
    assert lines[:2] == ["some GPU", "tests on cuda"]
    assert lines[2:] == [
        "table of benchmarks/gpu_depth_attention.py --budget-s 200 --json rows.json"
    ]


def test_no_time_is_printed_while_a_test_is_red_or_takes_too_long(call):
    status, lines = call(gpu=0, tests=1)
    assert status == 1
    assert lines[1:] == [
        "tests on cuda",
        "the tests are red or took over 230 s: no time is printed",
    ]


def test_nothing_runs_without_a_gpu(call):
    assert call(gpu=1, tests=0) == (1, ["some GPU"])


@pytest.mark.slow
def test_every_benchmark_goes_through_interpreted():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_depth_attention.py", "--dry-run"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "10 rows, no times" in done.stdout
