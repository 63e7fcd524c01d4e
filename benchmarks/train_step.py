"""What attention over depth adds to a training step of a transformers Llama.

    python benchmarks/train_step.py                # an hour or two on two cores
    python benchmarks/train_step.py --quick        # minutes
    python benchmarks/train_step.py --compile      # and the models compiled as a whole

The residual path is timed by itself, forward and backward, every sublayer returning its input: what
it takes longer than the plain sum x + f(x), over the step of transformers' own model (forward, loss
and backward; the optimiser is not counted, it would make the step longer). Whole steps are timed
too, as a cross-check: their noise is as large as what is looked for. Residual methods are those the
library has, in 8 blocks and full, with gradients shared between readers and added by autograd where
the method has the choice.

Clock, allocator and rounds are those of benchmarks/depth_attention.py; a call of over two seconds
has no untimed one before it. Peak memory: see benchmarks/peak_memory.py. No time is printed while
a residual path errs (exit status 1).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from command import run_command
from llama_step import (
    DTYPES,
    STANDARD,
    Size,
    Variant,
    build_model,
    check_variants,
    path_case,
    step_case,
    variants,
)
from machine import describe_machine, multiplies_slowly, print_machine
from peak_memory import peak_memory
from report import print_goals, print_steps, print_table, write_json
from rounds import Case, Samples, Timing, measure, ratio, summary
from step_goals import goals_of

PLAIN_PATH, STANDARD_STEP = "path: plain sum", "step: standard"


@dataclass(frozen=True)
class Settings:
    threads: int = 0
    """threads of torch; 0 is torch's own number"""
    rounds: int = 9
    """rounds of every case, at most"""
    case_seconds: float = 120.0
    """a case ends after the round in which it has taken so long, but not before three rounds"""
    quick: bool = False
    """width 512, batch 1, short cases, no whole steps of the methods, no memory"""
    compile: bool = False
    """also time Block and standard compiled as a whole: minutes of compiling"""
    dim: tuple[int, ...] = (512, 1024)
    """model widths"""
    batch: tuple[int, ...] = (1, 4)
    """sequences in a batch"""
    dtype: tuple[str, ...] = tuple(DTYPES)
    """dtypes of model and residual state"""
    n_layers: int = 12
    """transformer layers, of two sublayers each; at least 4"""
    n_tokens: int = 512
    """tokens in a sequence"""
    whole_steps: bool = True
    """also time whole steps of every method, with gradients shared"""
    memory: bool = True
    """also measure peak memory, each case in a process of its own"""
    json: Path | None = None
    """file for every sample, the machine and the goals"""


def main(settings: Settings) -> None:
    settings = _complete(settings)
    timing = Timing(settings.rounds, settings.case_seconds)
    machine = describe_machine()
    print_machine({**machine, "clock": timing.clock_name})
    found = variants()
    check_variants(found, [DTYPES[name] for name in settings.dtype])
    slow = [name for name in settings.dtype if multiplies_slowly(DTYPES[name])]
    if slow:
        print(
            f"\nThis processor multiplies {', '.join(slow)} slower than float32: the step is long, "
            "what is added to it looks small, and no goal is judged by it. Only the smallest size, "
            "and none with --quick."
        )
    sizes = _sizes(settings, slow)
    rows = [row for size in sizes for row in _measure_size(size, found, settings, slow)]
    compiled = list(_compiled_rows(found, settings)) if settings.compile else []
    memory = list(_memory_rows(found, settings)) if settings.memory else []
    goals = goals_of([row for row in rows if row["dtype"] not in slow], compiled, memory)
    print_goals(goals)
    load = describe_machine()["load_average"]
    result = {"benchmark": "train_step", "machine": machine, "clock": timing.clock_name}
    tables = {
        "slow_dtypes": slow,
        "rows": rows,
        "compiled": compiled,
        "memory": memory,
        "load_average_after": load,
    }
    write_json(settings.json, {**result, **tables}, goals)
    print(f"load average after: {load}")


def _complete(settings: Settings) -> Settings:
    unknown = set(settings.dtype) - set(DTYPES)
    if unknown:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {', '.join(unknown)}")
    if settings.n_layers < 4:
        raise ValueError(f"8 blocks need at least 4 layers, got {settings.n_layers}")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.quick:
        quick = replace(settings, rounds=min(settings.rounds, 5), case_seconds=20.0)
        return replace(quick, dim=settings.dim[:1], batch=(1,), whole_steps=False, memory=False)
    return settings


def _sizes(settings: Settings, slow: list[str]) -> Iterator[Size]:
    """Of a slow dtype only the first, and none in a quick run."""
    for dtype in settings.dtype:
        n = int(not settings.quick) if dtype in slow else None
        for dim in settings.dim[:n]:
            for batch in settings.batch[:n]:
                yield Size(dim, batch, DTYPES[dtype], settings.n_layers, settings.n_tokens)


def _measure_size(
    size: Size, found: list[Variant], settings: Settings, slow: list[str]
) -> list[dict[str, Any]]:
    timing = Timing(settings.rounds, settings.case_seconds)
    cases: dict[str, Case] = {f"path: {x.name}": path_case(x, size) for x in found}
    cases[PLAIN_PATH] = path_case(None, size)
    cases[STANDARD_STEP] = step_case(build_model(None, size), size)
    samples = measure(cases, timing)
    is_slow = str(size.dtype).removeprefix("torch.") in slow
    steps = _whole_steps(size, found, timing) if settings.whole_steps and not is_slow else {}
    rows = [_row(size, variant, samples, steps) for variant in found]
    _print_rows(size, rows, samples)
    return rows


def _whole_steps(size: Size, found: list[Variant], timing: Timing) -> Samples:
    """One round is enough where a round takes long; each method as it is used."""
    used = [variant for variant in found if variant.shares_gradients]
    cases = {f"step: {x.name}": step_case(build_model(x, size), size) for x in used}
    cases[STANDARD_STEP] = step_case(build_model(None, size), size)
    return measure(cases, timing._replace(least_rounds=1))


def _row(size: Size, variant: Variant, samples: Samples, steps: Samples) -> dict[str, Any]:
    path, plain = samples[f"path: {variant.name}"], samples[PLAIN_PATH]
    extra = [own - usual for own, usual in zip(path, plain, strict=True)]
    step = steps.get(f"step: {variant.name}")
    return {
        **_describe(size, variant.name),
        "layout": variant.layout,
        "shares_gradients": variant.shares_gradients,
        "path": summary(path),
        "plain_path": summary(plain),
        "standard_step": summary(samples[STANDARD_STEP]),
        "added": ratio(extra, samples[STANDARD_STEP]),
        "step": step and summary(step),
        "step_ratio": step and ratio(step, steps[STANDARD_STEP]),
    }


def _describe(size: Size, who: str) -> dict[str, Any]:
    dtype = str(size.dtype).removeprefix("torch.")
    return {"who": who, "dim": size.dim, "batch": size.batch, "dtype": dtype}


def _compiled_rows(found: list[Variant], settings: Settings) -> Iterator[dict[str, Any]]:
    """Block against standard, of the smallest size in each dtype that is not slow."""
    timing = Timing(settings.rounds, settings.case_seconds)
    blocks = [x for x in found if x.layout == "Block" and x.shares_gradients]
    for dtype in settings.dtype:
        if multiplies_slowly(DTYPES[dtype]):
            continue
        size = Size(
            settings.dim[0],
            settings.batch[0],
            DTYPES[dtype],
            settings.n_layers,
            settings.n_tokens,
        )
        cases = {x.name: step_case(torch.compile(build_model(x, size)), size) for x in blocks}
        cases[STANDARD] = step_case(torch.compile(build_model(None, size)), size)
        samples = measure(cases, timing)
        rows = [
            {
                **_describe(size, variant.name),
                "step": summary(samples[variant.name]),
                "standard_step": summary(samples[STANDARD]),
                "step_ratio": ratio(samples[variant.name], samples[STANDARD]),
            }
            for variant in blocks
        ]
        cells = [(row["who"], row["dtype"], str(row["step_ratio"])) for row in rows]
        print_table("Compiled as a whole", ("", "dtype", "over standard, compiled"), cells)
        yield from rows


def _memory_rows(found: list[Variant], settings: Settings) -> Iterator[dict[str, Any]]:
    """Of the narrowest model at the largest batch, where activations weigh most."""
    dtype = settings.dtype[0]
    size = Size(
        settings.dim[0], settings.batch[-1], DTYPES[dtype], settings.n_layers, settings.n_tokens
    )
    rows = []
    for checkpointing in (False, True):
        usual = peak_memory(None, size, checkpointing)
        for variant in found:
            own = peak_memory(variant, size, checkpointing)
            ratios = {name: own[name] / usual[name] for name in own}
            described = {**_describe(size, variant.name), "checkpointing": checkpointing}
            rows.append({**described, "bytes": own, "standard": usual, "over_standard": ratios})
    head = ("", "checkpointing", "allocated, MiB", "over standard", "resident, over standard")
    title = f"Peak memory of a step, d = {size.dim}, B = {size.batch}, {dtype}"
    print_table(title, head, [_memory_cells(row) for row in rows])
    yield from rows


def _memory_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["who"],
        "on" if row["checkpointing"] else "off",
        f"{row['bytes']['allocated_bytes'] / 2**20:.0f}",
        f"{row['over_standard']['allocated_bytes']:.3f}",
        f"{row['over_standard']['resident_bytes']:.3f}",
    )


def _print_rows(size: Size, rows: list[dict[str, Any]], samples: Samples) -> None:
    usual = summary(samples[STANDARD_STEP])["median_s"]
    plain = summary(samples[PLAIN_PATH])["median_s"]
    dtype = str(size.dtype).removeprefix("torch.")
    title = (
        f"Training step, d = {size.dim}, B = {size.batch}, T = {size.n_tokens}, {dtype}, "
        f"{len(samples[PLAIN_PATH])} rounds: standard {usual * 1e3:.4g} ms, of it the plain sum "
        f"{plain * 1e3:.3g} ms"
    )
    print_steps(title, rows)


if __name__ == "__main__":
    run_command(main, Settings, "train_step.py", "a residual path", __doc__ or "")
