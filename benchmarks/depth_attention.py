"""How near one read of the sources comes to the memory limit, and how far it leaves others behind.

    python benchmarks/depth_attention.py            # about half an hour on two cores
    python benchmarks/depth_attention.py --quick    # a minute

Every implementation that runs here is timed against the bandwidth floor measured beside it (see
benchmarks/bandwidth.py), against the paper's form in eager PyTorch, and against the peers that are
installed (pip install -e '.[bench]'). All are timed in the same rounds; a ratio is taken within
each round, and a table gives the median round [lowest, highest].

With all threads the clock is the wall's; with --threads 1 it is the process CPU time, which a busy
machine disturbs less. The allocator moves results more than kernels do: unless GLIBC_TUNABLES is
set (GLIBC_TUNABLES= keeps glibc's defaults), the benchmark starts itself again under one that keeps
freed pages. No time is printed while an implementation errs (exit status 1).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from bandwidth import Floor
from command import run_command
from contestants import PAPER, Contestant, contestants, random_inputs
from correctness import check_all
from depth_goals import goals_of
from machine import describe_machine, print_machine
from phase_one import check_queries, measure_queries
from report import print_goals, print_table, write_json
from rounds import Case, Ratio, Timing, measure, ratio, summary
from saved import saved_bytes
from torch import Tensor

Shape = tuple[int, int, int]  # rows, width, sources
SHAPES: tuple[Shape, ...] = (
    (2048, 512, 9),
    (2048, 1024, 9),
    (4096, 2048, 9),
    (256, 4096, 9),
    (2048, 256, 25),
    (2048, 1024, 55),
    (1, 4096, 9),
)
QUICK_SHAPES = ((2048, 512, 9), (1, 4096, 9))
QUERY_SHAPES = ((512, 1024, 8), (2048, 512, 9))
SAVED_SHAPE = (2048, 1024, 9)
LEAST_BYTES = 1 << 20  # of all sources; fewer stay in the core's own cache, which is no floor
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORWARD, BOTH = "forward", "forward + backward"


@dataclass(frozen=True)
class Settings:
    threads: int = 0
    """threads of torch; 0 is torch's own number"""
    rounds: int = 9
    """rounds of every row, at most"""
    row_seconds: float = 40.0
    """a row ends after the round in which it has taken so long, but not before three rounds"""
    quick: bool = False
    """two shapes and short rows"""
    compile: bool = False
    """also time torch.compile of the list form: minutes of compiling"""
    shape: tuple[Shape, ...] = ()
    """rows, width and sources of each shape, in place of the usual ones of every table"""
    dtype: tuple[str, ...] = tuple(DTYPES)
    """dtypes of the sources"""
    json: Path | None = None
    """file for every sample, the machine and the goals"""


class Group(NamedTuple):
    """What is timed in the same rounds."""

    shape: Shape
    dtype: str
    mode: str


def main(settings: Settings) -> None:
    settings = _complete(settings)
    timing = Timing(settings.rounds, settings.row_seconds)
    found, missing = contestants(settings.compile)
    machine = describe_machine()
    print_machine({**machine, "clock": timing.clock_name})
    print(*missing, sep="\n")
    dtypes = [DTYPES[name] for name in settings.dtype]
    check_all(found, dtypes)
    check_queries(dtypes)
    rows = list(_rows(settings, found, timing))
    usual_shapes = QUERY_SHAPES[:1] if settings.quick else QUERY_SHAPES
    queries = [
        row
        for shape in settings.shape or usual_shapes
        for dtype in dtypes
        for row in measure_queries(shape, dtype, timing)
    ]
    print_table("12 queries at once against 12 reads", *_query_table(queries))
    shape = settings.shape[-1] if settings.shape else SAVED_SHAPE
    saved = [saved_bytes(x, dtype, shape) for x in found for dtype in dtypes]
    print_table("Saved for backward beyond the inputs", *_saved_table(saved))
    goals = goals_of(rows, queries, saved)
    print_goals(goals)
    result = {"benchmark": "depth_attention", "machine": machine, "clock": timing.clock_name}
    tables = {"rows": rows, "queries": queries, "saved": saved, "missing": missing}
    write_json(settings.json, {**result, **tables, "load_average_after": _load()}, goals)
    print(f"load average after: {_load()}")


def _complete(settings: Settings) -> Settings:
    unknown = set(settings.dtype) - set(DTYPES)
    if unknown:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {', '.join(unknown)}")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.quick:
        return replace(settings, rounds=min(settings.rounds, 5), row_seconds=3.0)
    return settings


def _rows(settings: Settings, found: list[Contestant], timing: Timing) -> Iterator[dict[str, Any]]:
    """Printed group by group, since all of them take long."""
    shapes = settings.shape or (QUICK_SHAPES if settings.quick else SHAPES)
    for dtype in settings.dtype:
        for mode in (FORWARD, BOTH):
            for shape in shapes:
                group = Group(shape, dtype, mode)
                rows = _measure_group(group, found, timing)
                print_table(_title(group, rows), *_group_table(rows))
                yield from rows


def _measure_group(group: Group, found: list[Contestant], timing: Timing) -> list[dict[str, Any]]:
    n_rows, dim, n_sources = group.shape
    dtype = DTYPES[group.dtype]
    cases = {x.name: _case(x, group) for x in found}
    unit_bytes = n_rows * dim * dtype.itemsize
    floor = Floor(unit_bytes, n_sources) if unit_bytes * n_sources >= LEAST_BYTES else None
    samples = measure({**cases, **(floor.cases if floor else {})}, timing)
    floor_s = floor.seconds(samples, backward=group.mode == BOTH) if floor else None
    rows = []
    for contestant in found:
        own = samples[contestant.name]
        rows.append(
            {
                "shape": list(group.shape),
                "dtype": group.dtype,
                "mode": group.mode,
                "who": contestant.name,
                "is_peer": contestant.is_peer,
                **summary(own),
                "over_floor": ratio(own, floor_s) if floor_s else None,
                "over_paper": ratio(own, samples[PAPER]),
                "over_cpu": ratio(own, samples["cpu"]) if "cpu" in samples else None,
                "floor_s": median(floor_s) if floor_s else None,
                "probes_s": {x: median(samples[x]) for x in floor.cases} if floor else None,
            }
        )
    return rows


def _case(contestant: Contestant, group: Group) -> Case:
    n_rows, dim, n_sources = group.shape
    inputs = contestant.takes(random_inputs(n_rows, dim, n_sources, DTYPES[group.dtype]))
    if group.mode == FORWARD:
        return without_grad(contestant.prepare(inputs))
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    run = contestant.prepare(leaves)
    upstream = torch.randn_like(run(), requires_grad=False)
    return lambda: torch.autograd.grad(run(), list(leaves.values()), upstream)


def without_grad(run: Callable[[], Tensor]) -> Case:
    def case() -> Tensor:
        with torch.no_grad():
            return run()

    return case


def _title(group: Group, rows: list[dict[str, Any]]) -> str:
    n_rows, dim, n_sources = group.shape
    title = f"{group.mode}, {group.dtype}, R = {n_rows}, D = {dim}, S = {n_sources}"
    floor_s = rows[0]["floor_s"]
    return f"{title}, {len(rows[0]['samples_s'])} rounds" + (
        f", floor {floor_s * 1e3:.3g} ms" if floor_s else ", no floor: all in the core's cache"
    )


def _group_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("", "ms", "over the floor", "over the paper form", "over cpu")
    return head, [
        (
            row["who"],
            f"{row['median_s'] * 1e3:.4g}",
            *(_cell(row[name]) for name in ("over_floor", "over_paper", "over_cpu")),
        )
        for row in rows
    ]


def _query_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("R, D, S", "dtype", "mode", "12 reads, ms", "at once, ms", "faster", "over its floor")
    return head, [
        (
            ", ".join(str(n) for n in row["shape"]),
            row["dtype"],
            row["mode"],
            f"{row['reads']['median_s'] * 1e3:.4g}",
            f"{row['at_once']['median_s'] * 1e3:.4g}",
            _cell(row["faster"]),
            _cell(row["over_floor"]),
        )
        for row in rows
    ]


def _saved_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("", "dtype", "MiB", "bytes a token", "sources' worth")
    return head, [
        (
            row["who"],
            row["dtype"],
            f"{row['n_bytes'] / 2**20:.2f}",
            f"{row['bytes_a_token']:.0f}",
            f"{row['in_sources']:.2g}",
        )
        for row in rows
    ]


def _cell(ratio: Ratio | None) -> str:
    return "-" if ratio is None else str(ratio)


def _load() -> list[float]:
    return describe_machine()["load_average"]


if __name__ == "__main__":
    run_command(main, Settings, "depth_attention.py", "an implementation", __doc__ or "")
