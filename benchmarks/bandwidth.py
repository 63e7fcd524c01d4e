"""The bandwidth floor: the least time in which memory can move what a read of the sources must.

One unit is one source, R * D numbers of the sources' dtype; S sources.

    forward             reads S units, writes 1 (the mix)
    backward            reads S again and 1 (the gradient of the mix), writes S (of the sources)
    Q queries at once   reads S, writes Q; backward reads S + Q, writes S

Scalars a token (weights, statistics) and the vectors of the reader are left out, and so is whatever
a cache could keep between forward and backward: both only lower the floor.

A unit read costs 1/S of the fastest way found here to sum an initialised buffer of S units. A unit
written costs the least of: a fill with ordinary stores, a fill past the caches, and half a copy,
ordinary or past the caches, in which reads and writes are priced alike. Writes are priced on a
buffer of their own size, the mix on 1 unit and the gradients on S. All probes use the threads of
the op and are timed in the rounds of the op; the fastest of a kind is the one of the lowest median.
Sums in float32 alone may be bound by instructions, hence the probes in C++ (without a compiler:
torch's alone).
"""

import ctypes
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rounds import Case, Samples
from torch import Tensor

from attnres.ops.cpu_build import compiler

SOURCE = Path(__file__).with_name("bandwidth.cpp")
FLAGS = ("-std=gnu++20", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
LINE_BYTES = 64
READ, WRITE_ONE, WRITE_ALL = "read S", "write 1", "write S"


class Floor:
    """Probes for `n_sources` units of `unit_bytes` each, and the floors that follow."""

    def __init__(self, unit_bytes: int, n_sources: int):
        self.n_sources = n_sources
        one, every = _initialised(unit_bytes), _initialised(unit_bytes * n_sources)
        self._scale: dict[str, float] = {}
        self.cases: dict[str, Case] = {}
        self._add(READ, _ways_to_read(every), 1)
        for kind, source in ((WRITE_ONE, one), (WRITE_ALL, every)):
            target = source.clone()
            self._add(kind, _ways_to_fill(target), 1)
            self._add(kind, _ways_to_copy(target, source), 0.5)

    def _add(self, kind: str, ways: dict[str, Case], scale: float) -> None:
        for how, case in ways.items():
            self._scale[f"{kind}: {how}"] = scale
            self.cases[f"{kind}: {how}"] = case

    def fastest(self, samples: Samples, kind: str) -> tuple[str, list[float]]:
        """The probe of the lowest median, and its seconds in each round."""
        names = [name for name in self.cases if name.startswith(f"{kind}: ")]
        best = min(names, key=lambda name: self._scale[name] * median(samples[name]))
        return best, [self._scale[best] * s for s in samples[best]]

    def seconds(self, samples: Samples, *, backward: bool, n_queries: int = 1) -> list[float]:
        """The floor of forward, or of forward and backward, in each round."""
        _, read = self.fastest(samples, READ)
        _, write_one = self.fastest(samples, WRITE_ONE)
        _, write_all = self.fastest(samples, WRITE_ALL)
        floors = []
        for reading, mix, gradients in zip(read, write_one, write_all, strict=True):
            floor = reading + n_queries * mix
            if backward:
                floor += reading * (1 + n_queries / self.n_sources) + gradients
            floors.append(floor)
        return floors


def _initialised(n_bytes: int) -> Tensor:
    """Whole lines of numbers other than zero, since fresh pages are all one page of zeros."""
    n_bytes = -(-n_bytes // LINE_BYTES) * LINE_BYTES
    buffer = torch.empty(n_bytes + LINE_BYTES, dtype=torch.uint8)
    start = -buffer.data_ptr() % LINE_BYTES
    return buffer[start : start + n_bytes].view(torch.float32).fill_(1.0)


def _ways_to_read(x: Tensor) -> dict[str, Case]:
    ways: dict[str, Case] = {
        "torch.sum of float32": x.sum,
        "torch.sum of int64": x.view(torch.int64).sum,
        "torch.amax of float32": x.amax,
    }
    if library := _library():
        for streams in (1, 4):
            name = f"C++, {streams} stream{'s' * (streams > 1)}"
            ways[name] = _call(library.read_lines, [x], [x], streams)
    return ways


def _ways_to_fill(x: Tensor) -> dict[str, Case]:
    ways: dict[str, Case] = {"torch.fill_": lambda: x.fill_(2.0)}
    if library := _library():
        ways["C++ fill past the caches"] = _call(library.fill_lines, [x], [x])
    return ways


def _ways_to_copy(to: Tensor, source: Tensor) -> dict[str, Case]:
    ways: dict[str, Case] = {"half of torch.copy_": lambda: to.copy_(source)}
    if library := _library():
        call = _call(library.copy_lines, [to, source], [to])
        ways["half of a C++ copy past the caches"] = call
    return ways


def _call(
    function: Callable[..., Any], pointers: list[Tensor], sized: list[Tensor], *more: int
) -> Case:
    addresses = [ctypes.c_void_p(x.data_ptr()) for x in pointers]
    n_lines = ctypes.c_int64(sized[0].nbytes // LINE_BYTES)

    def run(alive: list[Tensor] = pointers) -> object:
        return function(*addresses, n_lines, torch.get_num_threads(), *more)

    return run


@cache
def _library() -> Any:
    """The probes in C++, or None, with a warning, where they cannot be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bandwidth.so"
        try:
            command = [*compiler(), *FLAGS, str(SOURCE), "-o", str(file)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            library = ctypes.CDLL(str(file))
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            message = f"the floor is probed by torch alone, and may be high: {error}"
            warnings.warn(message, stacklevel=2)
            return None
    library.read_lines.restype = ctypes.c_uint64
    return library
