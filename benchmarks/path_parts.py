"""Where the time of a residual path goes: in the kernel, in torch's additions, and in calls.

    python benchmarks/path_parts.py                # half a minute
    python benchmarks/path_parts.py --compile      # and of a compiled step: minutes of compiling

The path is the one that benchmarks/train_step.py times: forward and backward of 24 sublayers that
return their input. The kernel is timed around its two C functions, so with the start and the end of
its threads; additions are what torch's profiler finds, in a run of their own. What is left is
Python, autograd and allocation: the same path over 8 tokens of width 16 shows its least.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from command import run_command
from llama_step import (
    DTYPES,
    Size,
    Variant,
    build_model,
    check_variants,
    path_case,
    step_case,
    variants,
)
from machine import describe_machine, print_machine
from report import print_table, write_json
from rounds import Case
from torch.profiler import ProfilerActivity, profile

from attnres.ops.cpu import kernel

SMALL: dict[str, Any] = {"dim": 16, "batch": 1, "n_tokens": 8}
ADDITIONS = ("aten::add", "aten::add_")
N_PROFILED = 5
KERNEL = ("forward", "backward")


@dataclass(frozen=True)
class Settings:
    dim: int = 1024
    """model width"""
    batch: int = 1
    """sequences in a batch"""
    dtype: str = "float32"
    """of model and residual state: float32 or bfloat16"""
    threads: int = 0
    """threads of torch; 0 is torch's own number"""
    n_layers: int = 12
    """transformer layers, of two sublayers each; at least 4"""
    n_tokens: int = 512
    """tokens in a sequence"""
    rounds: int = 15
    """calls of a case, after two that are not timed"""
    compile: bool = False
    """also take the steps apart that are compiled as a whole"""
    json: Path | None = None
    """file for the table and the machine"""


class Clock:
    """Seconds inside the kernel, by the name of its function."""

    def __init__(self):
        self.seconds: dict[str, float] = dict.fromkeys(KERNEL, 0.0)

    def around(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def timed(*arguments: Any) -> int:
            start = time.perf_counter()
            status = function(*arguments)
            self.seconds[name] += time.perf_counter() - start
            return status

        return timed


@contextmanager
def kernel_clock() -> Iterator[Clock]:
    clock = Clock()
    own: Any = kernel()
    before = own._forward, own._backward
    own._forward = clock.around("forward", before[0])
    own._backward = clock.around("backward", before[1])
    try:
        yield clock
    finally:
        own._forward, own._backward = before


def main(settings: Settings) -> None:
    _check(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    machine = describe_machine()
    print_machine(machine)
    dtype = DTYPES[settings.dtype]
    found = [x for x in variants() if x.shares_gradients]
    check_variants(found, [dtype])
    size = Size(settings.dim, settings.batch, dtype, settings.n_layers, settings.n_tokens)
    rows = [_path_row(x, size, settings.rounds) for x in found]
    _print_paths(size, rows)
    compiled = _compiled_rows(found, size, settings.rounds) if settings.compile else []
    result = {"benchmark": "path_parts", "machine": machine, "rows": rows, "compiled": compiled}
    write_json(settings.json, result, [])


def _check(settings: Settings) -> None:
    if settings.dtype not in DTYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {settings.dtype}")
    if settings.n_layers < 4:
        raise ValueError(f"8 blocks need at least 4 layers, got {settings.n_layers}")
    if settings.rounds < 1:
        raise ValueError(f"rounds must be positive, got {settings.rounds}")


def _path_row(variant: Variant, size: Size, rounds: int) -> dict[str, Any]:
    case = path_case(variant, size)
    parts = _parts(case, rounds)
    additions = _additions_s(case)
    rest = parts["total"] - additions - sum(parts[name] for name in KERNEL)
    small = replace(size, **SMALL)
    least = _parts(path_case(variant, small), rounds)["total"]
    row = {**parts, "additions": additions, "rest": rest, "small": least}
    return {"who": variant.name, **row}


def _parts(case: Case, rounds: int) -> dict[str, float]:
    """Seconds of the median call, whole and inside the kernel."""
    for _ in range(2):
        case()
    found: dict[str, list[float]] = {name: [] for name in ("total", *KERNEL)}
    for _ in range(rounds):
        with kernel_clock() as clock:
            start = time.perf_counter()
            case()
            found["total"].append(time.perf_counter() - start)
        for name, seconds in clock.seconds.items():
            found[name].append(seconds)
    return {name: median(samples) for name, samples in found.items()}


def _additions_s(case: Case) -> float:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(N_PROFILED):
            case()
    events = [event for event in profiler.key_averages() if event.key in ADDITIONS]
    return sum(event.self_cpu_time_total for event in events) / 1e6 / N_PROFILED  # from us


def _compiled_rows(found: list[Variant], size: Size, rounds: int) -> list[dict[str, Any]]:
    """Steps of the model compiled as a whole, in turn with the standard one."""
    rows, standard = [], step_case(torch.compile(build_model(None, size)), size)
    for variant in (x for x in found if x.layout == "Block"):
        case = step_case(torch.compile(build_model(variant, size)), size)
        both = [(_parts(standard, 1)["total"], _parts(case, 1)) for _ in range(rounds)]
        parts = {name: median(own[name] for _, own in both) for name in both[0][1]}
        added = median(own["total"] - usual for usual, own in both)
        usual = median(usual for usual, _ in both)
        rest = added - sum(parts[name] for name in KERNEL)
        row = {**parts, "standard": usual, "added": added, "rest": rest}
        rows.append({"who": variant.name, **row})
    head = ("", "standard", "added", *(f"kernel, {name}" for name in KERNEL), "rest")
    names = ("standard", "added", *KERNEL, "rest")
    cells = [(row["who"], *(_ms(row[name]) for name in names)) for row in rows]
    print_table("Compiled as a whole, ms a step", head, cells)
    return rows


def _print_paths(size: Size, rows: list[dict[str, Any]]) -> None:
    dtype = str(size.dtype).removeprefix("torch.")
    names = ("total", *KERNEL, "additions", "rest", "small")
    head = ("", "path", *(f"kernel, {name}" for name in KERNEL), "additions", "rest", "8 tokens")
    cells = [(row["who"], *(_ms(row[name]) for name in names)) for row in rows]
    title = f"Residual path, d = {size.dim}, B = {size.batch}, T = {size.n_tokens}, {dtype}, ms"
    print_table(title, head, cells)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


if __name__ == "__main__":
    run_command(main, Settings, "path_parts.py", "a residual path", __doc__ or "")
