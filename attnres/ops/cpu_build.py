"""The CPU kernel as a shared library: shipped with the wheel, or compiled once into a cache.

It has a plain C interface and no torch header, so one library serves every version of torch.
"""

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCES = tuple(
    FOLDER / name for name in ("cpu.cpp", "cpu_interface.h", "cpu_rows.h", "cpu_vector.h")
)
FLAGS = (
    "-std=gnu++20",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-fopenmp",
)
# What each level of instructions asks of the processor (as /proc/cpuinfo says it) and the compiler.
VARIANTS = {
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "portable": (),
}
COMPILE_TIMEOUT_S = 300
LOADS = """
import ctypes, sys
try:
    import torch  # whose OpenMP it then shares
except ImportError:  # while a wheel is built
    pass
library = ctypes.CDLL(sys.argv[1])
library.attnres_forward, library.attnres_backward, library.attnres_quick
"""


def variants() -> list[str]:
    """Those that this processor runs, the widest first."""
    features = _features()
    return [name for name, needs in VARIANTS.items() if features.issuperset(needs)]


def library(variant: str, cache: Path) -> Path:
    """The compiled kernel; OSError or RuntimeError with the cause where it cannot be had."""
    name = file_name(variant)
    for place in (FOLDER / name, cache / name):
        if place.exists():
            return place
    return build(variant, cache)


def file_name(variant: str) -> str:
    """It changes with the sources and the flags, so that no stale library is loaded."""
    text = " ".join([platform.machine(), *_flags(variant)]).encode()
    content = hashlib.sha256(b"\0".join([text, *(s.read_bytes() for s in SOURCES)])).hexdigest()
    return f"cpu-{variant}-{content[:16]}.so"


def build(variant: str, folder: Path) -> Path:
    """Compile beside the file's place, load it, and move it there: no process meets a bad one."""
    file = folder / file_name(variant)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as place:
        unfinished = Path(place) / file.name
        command = [*compiler(), *_flags(variant), str(SOURCES[0]), "-o", str(unfinished)]
        try:
            status, errors = _run(command)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{command[0]} took more than {COMPILE_TIMEOUT_S} s") from error
        if status != 0 or not unfinished.exists():
            raise RuntimeError(f"{command[0]} failed: {_first_error(errors)}")
        _check_that_it_loads(unfinished, command[0])
        os.replace(unfinished, file)
    return file


def _check_that_it_loads(file: Path, compiler: str) -> None:
    """RuntimeError where it does not, in a process of its own, which a damaged library ends."""
    status, errors = _run([sys.executable, "-c", LOADS, str(file.resolve())])
    if status != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit status {status}"]
        raise RuntimeError(f"{compiler} wrote a library that does not load: {last[0]}")


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and standard error; whatever ends the wait ends what the command started too."""
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            _, errors = process.communicate(timeout=COMPILE_TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # a compiler is a driver and its children
            raise
    return process.returncode, errors


def compiler() -> list[str]:
    """$CXX, else the first of c++, g++ and clang++ on the path."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise RuntimeError("no C++ compiler: c++, g++ and clang++ are not on the path and CXX is unset")


def _flags(variant: str) -> list[str]:
    return [*FLAGS, *(f"-m{name}" for name in VARIANTS[variant])]


def _features() -> set[str]:
    """Of the processor; none known means that the portable variant runs."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[0]
