"""The machine and the process that are measured: said with every figure, since they move it."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attnres.ops import backends
from attnres.ops.cpu_build import compiler

# Freed pages stay with the process and huge ones are used, else page faults outweigh the kernels.
KEEP_PAGES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"
)
VARIABLE = "GLIBC_TUNABLES"
ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "triton", "fla-core", "attn-res")


def keep_pages() -> None:
    """Start this process again under `KEEP_PAGES`, unless the variable is set; empty is glibc's."""
    if VARIABLE not in os.environ and platform.libc_ver()[0] == "glibc":
        os.environ[VARIABLE] = KEEP_PAGES
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def describe_machine() -> dict[str, Any]:
    """A JSON object: processor, threads, load, versions, allocator, backends, commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()),
        "allocator": os.environ.get(VARIABLE) or "glibc's defaults",
        "compiler": _first_line(lambda: [*compiler(), "--version"]),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "backends": [str(backend) for backend in backends()],
        "commit": _first_line(lambda: ["git", "-C", str(ROOT), "rev-parse", "HEAD"]),
        "uncommitted_changes": bool(
            _first_line(lambda: ["git", "-C", str(ROOT), "status", "--porcelain"])
        ),
    }


def print_machine(machine: dict[str, Any]) -> None:
    for name, value in machine.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {version}" for key, version in value.items() if version)
        elif isinstance(value, list):
            separator = ", " if name == "load_average" else "\n" + " " * 21
            value = separator.join(str(entry) for entry in value)
        print(f"{name.replace('_', ' '):20} {value}")


def multiplies_slowly(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of `dtype` slower than of float32.

    Without instructions for bfloat16 by as much as 30 times, and then a share of a whole step says
    nothing of processors that have them.
    """
    if dtype == torch.float32:
        return False
    return _multiply_s(dtype) > _multiply_s(torch.float32)


def _multiply_s(dtype: torch.dtype) -> float:
    """Seconds that a product takes at best of three, after one untimed."""
    x = torch.ones(512, 512, dtype=dtype)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        torch.mm(x, x)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(command: Any) -> str | None:
    """Of what the command prints; None where it cannot be had."""
    try:
        done = subprocess.run(command(), capture_output=True, text=True, check=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError):
        return None
    return next(iter(done.stdout.splitlines()), None)
