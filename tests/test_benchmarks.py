"""The benchmarks run, write what they say, and print no time while an implementation errs.

Times are not looked at.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from implementations import needs_cpu_kernel

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
OP, STEP, DECODE, PREFILL = "depth_attention", "train_step", "decode", "prefill"
SHAPES = ["37", "123", "5", "64", "512", "9"]
SIZE = ["--dim", "64", "--batch", "1", "--n-tokens", "8", "--n-layers", "4"]
SHORT = ["--threads", "1", "--rounds", "3", "--case-seconds", "0", *SIZE, "--dtype", "float32"]
TINY = {
    OP: ["--threads", "1", "--rounds", "3", "--row-seconds", "0", "--shape", *SHAPES],
    STEP: [*SHORT, "--no-memory"],
    DECODE: [*SHORT, "--no-peers"],
    PREFILL: [*SHORT, "--no-peers"],
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Callable[[str], tuple[str, dict]]:
    """What a benchmark prints and writes in its smallest form, run once."""

    @cache
    def run_tiny(name: str) -> tuple[str, dict]:
        file = tmp_path_factory.mktemp(name) / "times.json"
        done = run([str(FOLDER / f"{name}.py"), *TINY[name], "--json", str(file)])
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(file.read_text())

    return run_tiny


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


def test_the_op_is_timed_against_the_floor_and_the_paper_form(tiny):
    output, result = tiny(OP)
    check_common(OP, output, result)
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


def test_what_is_saved_for_backward_is_counted(tiny):
    _, result = tiny(OP)
    saved = {row["who"]: row for row in result["saved"] if row["dtype"] == "float32"}
    assert saved["paper form, eager"]["in_sources"] > 9
    assert saved["closed_form"]["in_sources"] < 0.1


@needs_cpu_kernel  # plain PyTorch errs a tenth more than a benchmark allows
def test_a_training_step_is_timed_whole_and_in_its_residual_path(tiny):
    output, result = tiny(STEP)
    check_common(STEP, output, result)
    rows = {row["who"]: row for row in result["rows"]}
    assert {"attn_res, Block", "attn_res, Full"} <= set(rows)
    assert result["slow_dtypes"] == []
    for row in rows.values():
        assert len(row["path"]["samples_s"]) == len(row["standard_step"]["samples_s"]) == 3
        assert row["added"][1] <= row["added"][0] <= row["added"][2]
        assert (row["step_ratio"] is not None) == row["shares_gradients"]


@pytest.mark.parametrize("name", [DECODE, PREFILL])
def test_a_step_of_inference_is_timed_in_every_way_of_reading(name, tiny):
    output, result = tiny(name)
    check_common(name, output, result)
    rows = {row["who"]: row for row in result["rows"]}
    assert set(rows) == {f"{x}, {y}" for x in ("Block", "Full") for y in ("one", "two", "auto")}
    for who, row in rows.items():
        assert len(row["path"]["samples_s"]) == len(row["standard_step"]["samples_s"]) == 3
        assert row["added"][1] <= row["added"][0] <= row["added"][2]
        assert (row["step_ratio"] is not None) == who.endswith("auto")


@needs_cpu_kernel
def test_a_residual_path_is_taken_apart(tmp_path):
    file = tmp_path / "parts.json"
    tiny = ["--threads", "1", "--rounds", "3", *SIZE, "--json", str(file)]
    done = run([str(FOLDER / "path_parts.py"), *tiny])
    assert done.returncode == 0, done.stderr
    for row in json.loads(file.read_text())["rows"]:
        assert row["who"] in done.stdout
        assert row["forward"] > 0 < row["backward"]
        parts = ("forward", "backward", "additions", "rest")
        assert row["total"] == pytest.approx(sum(row[part] for part in parts))
    refused = run([str(FOLDER / "path_parts.py"), "--dtype", "float8"])
    assert refused.stderr.strip() == "dtype is one of float32, bfloat16, got float8"


def test_peak_memory_counts_parameters_gradients_and_activations():
    size = {"dim": 64, "batch": 1, "dtype": "float32", "n_layers": 4, "n_tokens": 8}
    job = {"variant": None, "size": size, "checkpointing": True, "threads": 1}
    done = run([str(FOLDER / "peak_memory.py"), json.dumps(job)])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    layer = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64  # attention, MLP, norms
    parameters = 2 * 4096 * 64 + 4 * layer + 64
    assert 2 <= measured["allocated_bytes"] / (4 * parameters) < 2.2
    assert measured["resident_bytes"] > 0


@every_benchmark
def test_no_time_is_printed_while_an_implementation_errs(name, tmp_path):
    file = tmp_path / "times.json"
    code = f"""
import {name} as benchmark, tyro
from correctness import WrongError
try:
    benchmark.main(tyro.cli(benchmark.Settings, args={[*TINY[name], "--json", str(file)]}))
except WrongError as wrong:
    raise SystemExit(f"refused: {{wrong}}")
"""
    done = run(["-c", WRONG + code])
    assert done.returncode == 1
    assert "refused: " in done.stderr
    assert " errs by " in done.stderr
    assert " ms" not in done.stdout
    assert not file.exists()


def test_the_form_of_the_paper_may_be_timed_whatever_its_numbers():
    code = """
import correctness, torch
from contestants import PAPER, contestants
paper = [each for each in contestants(compiled=False)[0] if each.name == PAPER]
for correctness.ODD in [(37, 123, 5), (41, 131, 4), (29, 119, 7), (33, 97, 6)]:
    correctness.check_all(paper, (torch.float32, torch.bfloat16))
"""
    done = run(["-c", code])
    assert done.returncode == 0, done.stderr


@every_benchmark
def test_it_explains_itself_and_refuses_bad_values_in_a_line(name):
    code = f"""
import {name} as benchmark, tyro
from correctness import WrongError
try:
    benchmark.main(benchmark.Settings(dtype=("float8",)))
except ValueError as error:
    print(error)
tyro.cli(benchmark.Settings, description=benchmark.__doc__, args=["--help"])
"""
    done = run(["-c", code])
    assert done.returncode == 0, done.stderr
    first, *text = done.stdout.splitlines()
    assert first == "dtype is one of float32, bfloat16, got float8"
    assert f"python benchmarks/{name}.py" in "\n".join(text)


def test_the_gate_fails_where_the_op_is_slower_in_most_rounds_alone():
    code = (
        "from gate import is_slower\n"
        "rounds = [1.2] * 4, [1.05] * 4, [0.8, 0.9, 1.2, 1.3], [0.7, 0.9, 1.3, 1.4, 1.5]\n"
        "print(*[is_slower(each, 1.1) for each in rounds])"
    )
    assert run(["-c", code]).stdout.split() == ["True", "False", "False", "False"]


@needs_cpu_kernel
def test_a_tree_whose_op_errs_is_not_compared_and_no_costs_are_fitted_to_it():
    code = """
import gate, calibrate_reads
from attnres.ops.cpu import kernel
print(gate._findings("float32"))
quick = kernel().quick
right = quick.read
quick.read = lambda queries, *others, **more: right([1.01 * q for q in queries], *others, **more)
try:
    calibrate_reads.check()
except calibrate_reads.WrongError as wrong:
    print(wrong)
"""
    done = run(["-c", WRONG + code])
    assert done.returncode == 0, done.stderr
    gate, *fitted = done.stdout.splitlines()
    assert "mix errs by " in gate
    assert [line.split(" by ")[0] for line in fitted] == ["mix errs", "lse errs"]


def test_the_gate_compares_two_trees_and_refuses_a_commit_that_is_none():
    done = run(["benchmarks/gate.py", "--ref", "HEAD", "--rounds", "2", "--bound", "1000"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passes") == 6
    done = run(["benchmarks/gate.py", "--ref", "nowhere"])
    assert done.returncode == 1
    assert done.stderr.startswith("no commit 'nowhere'")
