"""Times depth attention on a GPU against the copy bandwidth measured beside it, and against peers.

A row is printed only after the kernel was as exact as the reference on the same width and number of
sources. `--dry-run` goes through everything on the CPU at tiny sizes and prints no time; it needs
TRITON_INTERPRET=1.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kernel_budget import assert_kernel_within_budget, random_case

from attnres.ops import triton as kernel
from attnres.ops.fused import Fused

EPS = 1e-6
N_QUERIES = 12
DTYPE = torch.bfloat16
OURS = Fused(kernel)


class Size(NamedTuple):
    n_sources: int
    dim: int
    n_rows: int


class Task(NamedTuple):
    """What is timed, how many [R, D] tensors it must read and write, and by whom it is done."""

    name: str
    size: Size
    tensors: int
    ways: dict[str, Callable[[], object]]


class Row(NamedTuple):
    task: str
    n_sources: int
    dim: int
    n_rows: int
    way: str
    ms: float
    over_floor: float  # time over that of copying as many bytes
    over_ours: float


def paper_form(query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor) -> Tensor:
    """Stacked values, normalised keys and two einsums, in the dtype of the sources."""
    value_SRD = torch.stack(tuple(sources))
    key_SRD = F.rms_norm(value_SRD, query_D.shape, key_weight_D, EPS)
    alpha_SR = torch.einsum("d,srd->sr", query_D, key_SRD).softmax(dim=0)
    return torch.einsum("sr,srd->rd", alpha_SR, value_SRD)


def list_form(query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor) -> Tensor:
    """Source by source in float32, for the compiler to fuse."""
    folded_D = query_D.float() * key_weight_D.float()
    wide = [source.float() for source in sources]
    logits_SR = torch.stack(
        [(v @ folded_D) * torch.rsqrt(v.square().mean(dim=-1) + EPS) for v in wide]
    )
    alpha_SR = logits_SR.softmax(dim=0)
    mix_RD = sum(alpha.unsqueeze(-1) * v for alpha, v in zip(alpha_SR, wide, strict=True))
    assert isinstance(mix_RD, Tensor)
    return mix_RD.to(sources[0].dtype)


def peers(size: Size, with_compiler: bool) -> dict[str, Callable[..., Tensor]]:
    """Other ways to do one read, by name; fla only where it is installed."""
    ways: dict[str, Callable[..., Tensor]] = {"paper form, eager": paper_form}
    if with_compiler:
        ways["list form, torch.compile"] = torch.compile(list_form)
    try:
        fused_attnres = import_module("fla.ops.attnres").fused_attnres
    except ImportError:
        return ways
    if torch.cuda.is_available():
        ways["fla fused_attnres"] = lambda query_D, sources, key_weight_D: _first(
            fused_attnres(query_D, sources, key_weight_D)
        )
    return ways


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def tasks(size: Size, device: str, with_compiler: bool) -> Iterator[Task]:
    n_sources, dim, n_rows = size

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=DTYPE).requires_grad_()

    query_D, key_weight_D, upstream_RD = normal(dim), normal(dim), normal(n_rows, dim).detach()
    sources = [normal(n_rows, dim) for _ in range(n_sources)]
    readers: dict[str, Callable[..., Tensor]] = {"ours": _ours, **peers(size, with_compiler)}
    one = (query_D, sources, key_weight_D)
    yield Task("forward", size, n_sources + 1, {k: _without(f, one) for k, f in readers.items()})
    trained = {k: _trained(f, one, [upstream_RD]) for k, f in readers.items()}
    yield Task("forward + backward", size, 3 * n_sources + 2, trained)

    queries_QD, weights_QD = normal(N_QUERIES, dim), normal(N_QUERIES, dim)
    upstream_QRD = [normal(n_rows, dim).detach() for _ in range(N_QUERIES)]
    many = (queries_QD, sources, weights_QD)
    ways = {"ours": _ours_queries, "ours, one by one": _one_by_one}
    n_tensors = n_sources + N_QUERIES
    yield Task("phase 1", size, n_tensors, {k: _without(f, many) for k, f in ways.items()})
    trained = {k: _trained(f, many, upstream_QRD) for k, f in ways.items()}
    yield Task("phase 1 + backward", size, 2 * n_tensors + n_sources, trained)

    lse_R = torch.randn(n_rows, device=device).requires_grad_()
    merged = (sources[0], lse_R, sources[1], query_D, key_weight_D)
    yield Task("merge", size, 3, {"ours": _without(_ours_merge, merged)})
    trained = {"ours": _trained(_ours_merge, merged, [upstream_RD])}
    yield Task("merge + backward", size, 8, trained)


def _ours(query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor) -> Tensor:
    return OURS.depth_attention(query_D, sources, key_weight_D, EPS)


def _ours_queries(
    queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor
) -> tuple[Tensor, ...]:
    return OURS.split_queries(queries_QD, sources, key_weights_QD, EPS)[0]


def _one_by_one(
    queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor
) -> tuple[Tensor, ...]:
    pairs = zip(queries_QD, key_weights_QD, strict=True)
    return tuple(_ours(query_D, sources, weight_D) for query_D, weight_D in pairs)


def _ours_merge(
    mix_RD: Tensor, lse_R: Tensor, partial_RD: Tensor, query_D: Tensor, key_weight_D: Tensor
) -> Tensor:
    return OURS.merge(mix_RD, lse_R, [partial_RD], query_D, key_weight_D, EPS)[0]


def _without(function: Callable, arguments: tuple) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return function(*arguments)

    return call


def _trained(
    function: Callable, arguments: tuple, upstream: Sequence[Tensor]
) -> Callable[[], object]:
    tensors = [y for x in arguments for y in (x if isinstance(x, list) else [x])]

    def call() -> object:
        out = function(*arguments)
        outputs = list(out) if isinstance(out, tuple) else [out]
        return torch.autograd.grad(outputs, tensors, list(upstream))

    return call


def check(size: Size, device: str) -> None:
    """The kernel within the error budget, on few rows."""
    for n_queries, n_sources, given in (
        (1, size.n_sources, False),
        (N_QUERIES, size.n_sources, False),
        (1, 1, True),
    ):
        shape = (n_queries, n_sources, 3, size.dim)
        assert_kernel_within_budget(
            kernel, random_case(*shape, dtype=DTYPE, with_given=given, device=device)
        )


def milliseconds(ways: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median of each on the device, the ways in turn, after one untimed call of each."""
    for way in ways:
        way()
    samples: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, times in zip(ways, samples, strict=True):
            times.append(_once(way))
    return [statistics.median(times) for times in samples]


def _once(way: Callable[[], object]) -> float:
    if not torch.cuda.is_available():
        way()
        return float("nan")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    way()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(task: Task, device: str, repeats: int) -> list[Row]:
    """The floor is a copy of as many bytes as the task must move, timed in turn with it."""
    source = torch.empty(task.size.n_rows * task.size.dim, dtype=DTYPE, device=device)
    target = torch.empty_like(source)
    n_copies = max(1, task.tensors // 2)

    def copies() -> None:
        for _ in range(n_copies):
            target.copy_(source)

    floor, *times = milliseconds([copies, *task.ways.values()], repeats)
    floor *= task.tensors / (2 * n_copies)
    return [
        Row(task.name, *task.size, way, ms, ms / floor, ms / times[0])
        for way, ms in zip(task.ways, times, strict=True)
    ]


def run(sizes: Sequence[Size], device: str, repeats: int, budget_s: float) -> list[Row]:
    rows: list[Row] = []
    end = time.monotonic() + budget_s
    for i, size in enumerate(sizes):
        if time.monotonic() > end:
            print(f"out of time: {[tuple(x) for x in sizes[i:]]} left out", flush=True)
            break
        check(size, device)
        with_compiler = size.n_sources == 9 and device == "cuda"  # a minute of compiling each
        for task in tasks(size, device, with_compiler):
            rows += measure(task, device, repeats)
        print(f"done: {size}", flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'task':20}{'S':>4}{'D':>6}{'rows':>7}  {'way':26}{'ms':>9}{'/floor':>8}{'/ours':>8}"
    ]
    for row in rows:
        name, n_sources, dim, n_rows, way, ms, over_floor, over_ours = row
        lines.append(
            f"{name:20}{n_sources:4}{dim:6}{n_rows:7}  {way:26}"
            f"{ms:9.3f}{over_floor:8.2f}{over_ours:8.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, without times")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget-s", type=float, default=200, help="begins no size after so long")
    parser.add_argument("--json", type=Path, help="file for the rows")
    arguments = parser.parse_args()
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    if arguments.dry_run:
        rows = run([Size(3, 24, 4)], "cpu", 1, arguments.budget_s)
        print(f"dry run on the CPU, {versions}: {len(rows)} rows, no times")
        return
    if not torch.cuda.is_available():
        sys.exit(f"no GPU: torch {torch.__version__} sees no CUDA device, so nothing was timed")
    device = f"{torch.cuda.get_device_name()}, {versions}"
    sizes = [
        Size(n_sources, dim, 2**25 // dim // 64 * 64)
        for n_sources in (9, 5, 25)
        for dim in (4096, 1024, 7168, 2048)
    ]
    rows = run(sizes, "cuda", arguments.repeats, arguments.budget_s)
    if arguments.json:
        found = {"device": device, "rows": [row._asdict() for row in rows]}
        arguments.json.write_text(json.dumps(found, indent=1))
    print(f"\n{device}, bfloat16; floor: copying as many bytes\n{table(rows)}")


if __name__ == "__main__":
    main()
