"""Compiling the kernel: once, whole or not at all, and a failure is said once, with its cause."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from implementations import needs_compiler

from attnres.ops import cpu_build

PLAIN = """
import warnings
from pathlib import Path
from attnres.ops import backends, cpu_build, depth_attention
cpu_build.FOLDER = Path("nowhere")  # the library that came with the installation
import torch
"""
READ = """
query, source = torch.randn(8), torch.randn(2, 3, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        depth_attention(query, [source, 2 * source], torch.ones(8))
print(*(str(w.message) for w in caught), sep="\\n")
"""


def _python(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "ATTNRES_IMPL"}
    environment = {**outside, "ATTNRES_CACHE": str(tmp_path / "cache"), **environment}
    return subprocess.run(
        [sys.executable, "-c", PLAIN + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _compiler(folder: Path, *lines: str) -> str:
    """A compiler that does what a shell script says; its last argument is the file to write."""
    file = folder / "compiler"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["echo 'x.h:1: fatal error: no space left' >&2", "exit 1"], "no space left"),
        (["for last; do :; done", "echo half > $last", "kill -9 $$"], "no message"),
        (["exit 0"], "no message"),
    ],
)
def test_a_compiler_that_fails_is_named_once_and_plain_pytorch_runs(tmp_path, lines, cause):
    done = _python(READ, tmp_path, CXX=_compiler(tmp_path, *lines))
    assert done.returncode == 0, done.stderr
    (message,) = done.stdout.strip().splitlines()
    assert "plain PyTorch" in message
    assert (
        f"compiler failed: {cause}" in message
        or f"compiler failed: x.h:1: fatal error: {cause}" in message
    )
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("then", "cause"),
    [
        ('truncate -s 20000 "$last"', "exit status -"),  # a bus error
        ('echo "int x;" | c++ -shared -x c++ - -o "$last"', "undefined symbol: attnres_forward"),
    ],
    ids=["truncated", "empty"],
)
def test_a_library_that_does_not_load_is_never_kept(tmp_path, then, cause):
    lines = ["for last; do :; done", 'c++ "$@" || exit 1', then]
    done = _python(READ, tmp_path, CXX=_compiler(tmp_path, *lines))
    assert done.returncode == 0, done.stderr
    (message,) = done.stdout.strip().splitlines()
    assert "plain PyTorch" in message
    assert "compiler wrote a library that does not load: " in message
    assert cause in message
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.slow
def test_a_compiler_that_takes_too_long_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", _compiler(tmp_path, f"sh -c 'sleep 2; echo > {tmp_path}/alive'"))
    monkeypatch.setattr(cpu_build, "COMPILE_TIMEOUT_S", 0.5)
    with pytest.raises(RuntimeError, match=r"compiler took more than 0\.5 s"):
        cpu_build.build("portable", tmp_path)
    time.sleep(4)
    assert [each.name for each in tmp_path.iterdir()] == ["compiler"]


def test_without_a_compiler_the_warning_says_so(tmp_path):
    done = _python(READ, tmp_path, CXX="", PATH=str(tmp_path))
    assert "no C++ compiler" in done.stdout, done.stderr


def test_a_named_kernel_does_not_fall_back(tmp_path):
    code = "depth_attention(torch.ones(2), [torch.ones(2)], torch.ones(2), impl='cpu')"
    done = _python(code, tmp_path, CXX="no_such_compiler")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: implementation 'cpu' does not run here: ")
    assert "no_such_compiler" in last


def test_a_damaged_library_is_a_cause_too(tmp_path):
    file = tmp_path / "cache" / cpu_build.file_name(cpu_build.variants()[0])
    file.parent.mkdir()
    file.write_bytes(b"half")
    done = _python(READ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{file.name}: file too short" in done.stdout


def test_backends_say_what_runs_and_what_is_missing(tmp_path):
    done = _python("print(*backends(), sep='\\n')", tmp_path, CXX="no_such_compiler")
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines()}
    assert lines["cpu"].startswith("cpu: does not run. ")
    assert "no_such_compiler" in lines["cpu"]
    assert lines["closed_form"].startswith("closed_form: runs, the default on cpu")


def test_the_environment_names_the_default(tmp_path):
    done = _python("print(*backends(), sep='\\n')", tmp_path, ATTNRES_IMPL="reference", CXX="no")
    assert "reference: runs, the default on cpu and cuda" in done.stdout


@pytest.mark.slow
@needs_compiler
def test_processes_that_compile_at_once_get_one_whole_library(tmp_path):
    code = READ + "print([b.runs for b in backends() if b.name == 'cpu'])"
    command = [sys.executable, "-c", PLAIN + code]
    environment = {**os.environ, "ATTNRES_CACHE": str(tmp_path)}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in both] == ["[True]", "[True]"]
    assert len(list(tmp_path.iterdir())) == 1


def test_the_name_of_a_library_follows_its_source(tmp_path, monkeypatch):
    before = cpu_build.file_name("portable")
    changed = tmp_path / "cpu.cpp"
    changed.write_text(cpu_build.SOURCES[0].read_text() + "\n")
    monkeypatch.setattr(cpu_build, "SOURCES", (changed, *cpu_build.SOURCES[1:]))
    assert cpu_build.file_name("portable") != before
    assert cpu_build.file_name("avx2") != cpu_build.file_name("portable")
