"""The benchmarks run, write what they say, and print no time while an implementation errs.

Times are not looked at.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
TINY = {
    "depth_attention": "--quick --threads 1 --rounds 3 --shape 37 123 5 64 512 9".split(),
    "train_step": (
        "--threads 1 --rounds 3 --dim 64 --batch 1 --n-tokens 8 --n-layers 4 --dtype float32"
    ).split(),
}
WRONG = """
from attnres.ops.backends import LOADERS, Loader, implementation, loaded
import torch

class Wrong:
    def __init__(self, right):
        self.right = right
    def __getattr__(self, name):
        return getattr(self.right, name)
    def depth_attention(self, query_D, sources, key_weight_D, eps):
        return self.right.depth_attention(query_D * 1.01, sources, key_weight_D, eps)

wrong = Wrong(implementation("closed_form", torch.device("cpu")))
for name in ("cpu", "closed_form"):
    LOADERS[name], loaded[name] = Loader(lambda: wrong, str), wrong
"""

pytestmark = pytest.mark.slow
every_benchmark = pytest.mark.parametrize("name", TINY)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLIBC_TUNABLES": "", "PYTHONPATH": f"{ROOT}:{FOLDER}"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def run_tiny(name: str, file: Path) -> tuple[str, dict]:
    done = run([str(FOLDER / f"{name}.py"), *TINY[name], "--json", str(file)])
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def check_common(name: str, output: str, result: dict) -> None:
    assert result["benchmark"] == name
    machine = result["machine"]
    assert machine["threads"] == 1
    assert result["clock"] == "process CPU time"
    assert machine["allocator"] == "glibc's defaults"
    assert machine["versions"]["torch"]
    assert {"processor", "load_average", "compiler", "python", "backends", "commit"} <= set(machine)
    for goal in result["goals"]:
        assert goal["met"] in (True, False, None)
        assert goal["what"] in output


def test_the_op_is_timed_against_the_floor_and_the_paper_form(tmp_path):
    output, result = run_tiny("depth_attention", tmp_path / "op.json")
    check_common("depth_attention", output, result)
    rows = {(*row["shape"], row["dtype"], row["mode"], row["who"]): row for row in result["rows"]}
    modes = ("forward", "forward + backward")
    for dtype in ("float32", "bfloat16"):
        for mode in modes:
            small = rows[37, 123, 5, dtype, mode, "closed_form"]
            assert small["over_floor"] is None, "all of it is in the core's cache"
            assert len(small["samples_s"]) == 3
            low, high = small["over_paper"][1:]
            assert 0 < low <= small["over_paper"][0] <= high
    large = rows[64, 512, 9, "float32", modes[1], "closed_form"]
    assert large["floor_s"] > 0
    assert large["over_floor"][0] > 0
    assert {name.partition(":")[0] for name in large["probes_s"]} == {
        "read S",
        "write 1",
        "write S",
    }
    assert {row["mode"] for row in result["queries"]} == set(modes)


def test_what_is_saved_for_backward_is_counted(tmp_path):
    _, result = run_tiny("depth_attention", tmp_path / "op.json")
    saved = {row["who"]: row for row in result["saved"] if row["dtype"] == "float32"}
    assert saved["paper form, eager"]["in_sources"] > 9
    assert saved["closed_form"]["in_sources"] < 0.1


def test_a_training_step_is_timed_whole_and_in_its_residual_path(tmp_path):
    output, result = run_tiny("train_step", tmp_path / "step.json")
    check_common("train_step", output, result)
    rows = {row["who"]: row for row in result["rows"]}
    assert {"attn_res, Block", "attn_res, Full"} <= set(rows)
    for row in rows.values():
        assert len(row["path"]["samples_s"]) == len(row["standard_step"]["samples_s"]) == 3
        assert row["added"][1] <= row["added"][0] <= row["added"][2]
        assert row["step_ratio"][0] > 0
    assert {row["checkpointing"] for row in result["memory"]} == {False, True}
    for row in result["memory"]:
        assert row["bytes"]["allocated_bytes"] > 0
        assert 0.5 < row["over_standard"]["allocated_bytes"] < 2


@every_benchmark
def test_no_time_is_printed_while_an_implementation_errs(name, tmp_path):
    file = tmp_path / "times.json"
    main = f"import tyro, {name} as b\n"
    arguments = [*TINY[name], "--json", str(file)]
    main += f"try: b.main(tyro.cli(b.Settings, args={arguments}))\n"
    main += "except b.WrongError as wrong: raise SystemExit(f'refused: {wrong}')\n"
    done = run(["-c", WRONG + main])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].count("errs by") or "errs by" in done.stderr
    assert "refused" in done.stderr
    assert " ms" not in done.stdout
    assert not file.exists()


@every_benchmark
def test_help_and_bad_values(name):
    done = run([str(FOLDER / f"{name}.py"), "--help"])
    assert done.returncode == 0
    assert "errs" in done.stdout
    done = run([str(FOLDER / f"{name}.py"), "--dtype", "float8"])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("dtype is one of float32, bfloat16, got float8")
