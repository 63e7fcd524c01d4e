"""The tests themselves where nothing compiles: the C++ kernel's are skipped, all others run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTEST = """
import sys
from pathlib import Path
import pytest
from attnres.ops import cpu_build
cpu_build.FOLDER = Path("nowhere")  # the library that came with the installation
sys.exit(pytest.main(sys.argv[1:]))
"""
OF_THE_KERNEL = ["ops/test_cpu_kernel.py", "ops/test_quick.py", "ops/test_library.py"]
OF_OTHERS = ["residual/test_attn_res.py", "ops/test_centered_attention.py"]

pytestmark = pytest.mark.slow


def _pytest(tmp_path: Path, compiler: str, *arguments: str) -> tuple[int, str]:
    """Exit status, and what was printed: the last line counts."""
    options = ["-p", "no:cacheprovider", "-m", "not slow", "-rs", "--tb=line"]
    environment = {**os.environ, "ATTNRES_CACHE": str(tmp_path), "CXX": compiler}
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, *options, *arguments],
        env={**environment, "PYTEST_ADDOPTS": "-o addopts=--strict-markers"},
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_test_is_found(tmp_path):
    status, output = _pytest(tmp_path, "no_such_compiler", "--collect-only")
    assert status == 0, output


def test_what_is_about_the_kernel_is_skipped_with_the_cause_and_all_else_runs(tmp_path):
    status, output = _pytest(tmp_path, "no_such_compiler", *OF_THE_KERNEL)
    assert status == 0, output
    assert "no_such_compiler" in output
    assert " passed" not in output
    status, output = _pytest(tmp_path, "no_such_compiler", *OF_OTHERS)
    assert status == 0, output
    assert " skipped" not in output


def test_a_compiler_that_fails_is_no_reason_to_skip(tmp_path):
    status, output = _pytest(tmp_path, "false", *OF_THE_KERNEL)
    assert status == 1, output
    assert "false failed" in output
    assert " skipped" not in output
