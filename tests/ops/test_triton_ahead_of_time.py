"""Triton's kernels compile for GPUs that are not at hand, and spill no registers there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "ahead_of_time.py"
# bytes a program may have at most: CUDA C++ programming guide, technical specifications by compute
# capability; AMD CDNA 3 instruction set, local data share
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 512}
KERNELS = {"fill_table", "forward_online", "forward_sweeps", "backward_tiles"}


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(SHARED))
def test_every_launch_compiles_to_wide_loads_without_spills(target, tmp_path):
    """In a process of its own: here Triton is interpreted, and compiles nothing."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, SCRIPT, target],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["kernel"] for report in reports} == KERNELS
    for report in reports:
        assert report["spilled"] == 0, report
        assert report["registers"] <= REGISTERS[target], report
        assert report["shared"] <= SHARED[target], report
        assert report.get("narrow_loads", 0) == 0, report
