"""Compiles the launches that `attnres.ops.triton` would make, for GPUs that need not be there.

Run as a process without TRITON_INTERPRET: `python ahead_of_time.py TARGET...`, where a target is
one of TARGETS. Prints one JSON object a compiled kernel.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from attnres.ops import triton as host
from attnres.ops.kernel import Given, SourceGradients, Upstream

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
}


class Read(NamedTuple):
    """What a user's read is, as far as the kernels are compiled for it."""

    n_queries: int
    n_sources: int
    dim: int
    dtype: torch.dtype = torch.bfloat16
    given: bool = False
    n_rows: int = 4096


READS = [
    *(Read(1, 9, dim) for dim in (1024, 4096, 7168)),
    Read(1, 9, 4096, torch.float32),
    Read(1, 9, 4096, torch.float16),
    Read(1, 187, 512),
    Read(1, 5, 123, torch.float32),
    Read(1, 5, 20000),
    Read(1, 1, 4096, given=True),
    Read(4, 25, 2048, given=True),
    Read(12, 9, 4096),
    Read(5, 5, 123, torch.float32),
    Read(24, 9, 7168),
]


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple
    options: dict[str, Any]


class Recorder:
    """Stands for a kernel and keeps what it is launched with."""

    def __init__(self, kernel: Any, launches: list[Launch]):
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple) -> Any:
        return lambda *args, **options: self.launches.append(Launch(self.kernel, args, options))


def record(read: Read) -> list[Launch]:
    """The launches of forward and backward."""
    launches: list[Launch] = []
    names = ["fill_table", "forward_online", "forward_sweeps", "backward_tiles"]
    kernels = {name: getattr(host, name) for name in names}
    host._check = lambda *args: None
    try:
        for name, kernel in kernels.items():
            setattr(host, name, Recorder(kernel, launches))
        _forward_backward(read)
    finally:
        for name, kernel in kernels.items():
            setattr(host, name, kernel)
    return launches


def _forward_backward(read: Read) -> None:
    """Memory that is never touched costs nothing."""
    shape = (read.n_rows, read.dim)
    folded_QD = torch.empty(read.n_queries, read.dim)
    sources = [torch.empty(shape, dtype=read.dtype) for _ in range(read.n_sources)]
    given = None
    if read.given:
        mix_QD = torch.empty(read.n_queries, *shape, dtype=read.dtype)
        given = Given(mix_QD, torch.empty(read.n_queries, read.n_rows))
    result = host.forward(folded_QD, sources, given, 1e-6)
    upstream = Upstream(list(result.mix_QD), result.lse_Q)
    into = SourceGradients(sources, [True] * len(sources))
    host.backward(upstream, folded_QD, sources, given, result.saved, into, True)


def compiled(launch: Launch, target: GPUTarget) -> Any:
    """The kernel as the launch would have it compiled: typed and aligned by its arguments."""
    fn, options = launch.kernel, dict(launch.options)
    constants = {name: options.pop(name) for name in list(options) if name in fn.arg_names}
    constants |= {
        name: None for name, x in zip(fn.arg_names, launch.arguments, strict=False) if x is None
    }
    types = dict(zip(fn.arg_names, map(_type, launch.arguments), strict=False))
    signature = {name: types.get(name, "constexpr") for name in fn.arg_names}
    aligned = [i for i, x in enumerate(launch.arguments) if _is_aligned(x)]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn, signature, constants, attributes)
    if target.backend == "hip":
        options.pop("maxnreg", None)
    return compile(source, target=target, options=options)


def _type(argument: object) -> str:
    if argument is None:
        return "constexpr"
    if isinstance(argument, torch.Tensor):
        return POINTERS[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    return "i32"


def _is_aligned(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and argument.data_ptr() % 16 == 0


def resources(kernel: Any, target: GPUTarget) -> dict[str, int]:
    """Registers and spilled bytes a thread, shared bytes a program; on NVIDIA 2-byte loads."""
    return _of_hsaco(kernel) if target.backend == "hip" else _of_cubin(kernel)


def _of_cubin(kernel: Any) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [tool, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", text)}
    return {
        "registers": found["REG"],
        "spilled": found["STACK"] + found["LOCAL"],
        "shared": kernel.metadata.shared,
        "narrow_loads": len(re.findall(r"ld\.global\S*\.[bu]16\b", kernel.asm["ptx"])),
    }


def _of_hsaco(kernel: Any) -> dict[str, int]:
    text = kernel.asm["amdgcn"]

    def field(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s*(\d+)", text)[-1])

    spilled = field("private_segment_fixed_size") + field("vgpr_spill_count")
    return {
        "registers": field("vgpr_count"),
        "spilled": spilled,
        "shared": kernel.metadata.shared,
    }


def reports(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for read in READS:
        for launch in record(read):
            for name in names:
                start = time.perf_counter()
                found = resources(compiled(launch, TARGETS[name]), TARGETS[name])
                yield {
                    "target": name,
                    "read": str(read),
                    "kernel": launch.kernel.__name__,
                    "warps": launch.options["num_warps"],
                    "tile": [launch.options.get(x) for x in ("BR", "BC")],
                    "seconds": round(time.perf_counter() - start, 2),
                    **found,
                }


if __name__ == "__main__":
    for report in reports(sys.argv[1:]):
        print(json.dumps(report), flush=True)
