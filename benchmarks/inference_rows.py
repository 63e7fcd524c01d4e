"""Decode and prefill, measured and said alike."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from inference_step import (
    Way,
    check_ways,
    n_parameters,
    path_case,
    peer_case,
    peers,
    ways,
)
from llama_step import Size
from machine import describe_machine, multiplies_slowly, print_machine
from report import Goal, print_goals, print_steps, worst, write_json
from rounds import Case, Timing, measure, ratio, summary

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PLAIN, STANDARD = "path: plain sum", "step: standard"


@dataclass(frozen=True)
class Settings:
    quick: bool = False
    """the first width alone, batch 1, float32, paths without whole steps"""
    threads: int = 0
    """threads of torch; 0 is torch's own number"""
    rounds: int = 9
    """rounds of every case, at most"""
    case_seconds: float = 60.0
    """a size ends after the round in which it has taken so long, but not before three rounds"""
    dim: tuple[int, ...] = (512, 1024)
    """model widths"""
    n_layers: int = 12
    """transformer layers, of two sublayers each; at least 4"""
    batch: tuple[int, ...] = (1, 8)
    """sequences in a batch"""
    n_tokens: int = 512
    """tokens in a prompt; decode has as many behind it"""
    dtype: tuple[str, ...] = tuple(DTYPES)
    """dtypes of model and residual state"""
    whole_steps: bool = True
    """also time whole steps, as a cross-check"""
    peers: bool = True
    """also time the reads of peers"""
    json: Path | None = None
    """file for every sample, the machine and the goals"""


class Kind(NamedTuple):
    """Decode or prefill."""

    name: str
    step_case: Callable[[Way | None, Size], Case]
    is_decode: bool
    limits: dict[tuple[str, int, str], float]  # percent added, by dtype, width and layout

    def n_tokens(self, size: Size) -> int:
        return 1 if self.is_decode else size.n_tokens


def run(kind: Kind, settings: Settings) -> None:
    settings = _complete(settings)
    timing = Timing(settings.rounds, settings.case_seconds)
    machine = describe_machine()
    print_machine({**machine, "clock": timing.clock_name})
    check_ways([DTYPES[name] for name in settings.dtype])
    slow = [name for name in settings.dtype if multiplies_slowly(DTYPES[name])]
    if slow:
        print(f"\nThis processor multiplies {', '.join(slow)} slower than float32: no goal of it.")
    rows = [
        row
        for dtype in settings.dtype
        for dim in settings.dim
        for batch in settings.batch
        for row in _measure_size(
            kind,
            Size(dim, batch, DTYPES[dtype], settings.n_layers, settings.n_tokens),
            settings,
            timing,
        )
    ]
    goals = _goals(kind, [row for row in rows if row["dtype"] not in slow])
    print_goals(goals)
    result = {"benchmark": kind.name, "machine": machine, "clock": timing.clock_name}
    load = describe_machine()["load_average"]
    tables = {"slow_dtypes": slow, "rows": rows, "load_average_after": load}
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
        small = replace(settings, dim=settings.dim[:1], batch=(1,), dtype=settings.dtype[:1])
        return replace(small, rounds=min(settings.rounds, 5), whole_steps=False)
    return settings


def _measure_size(
    kind: Kind, size: Size, settings: Settings, timing: Timing
) -> list[dict[str, Any]]:
    n_tokens = kind.n_tokens(size)
    cases: dict[str, Case] = {f"path: {way.name}": path_case(way, size, n_tokens) for way in ways()}
    names = {f"path: {way.name}": way.variant.layout for way in ways()}
    for peer in peers()[0] if settings.peers else ():
        for layout in ("Block", "Full"):
            name = f"path: {layout}, {peer.name}"
            cases[name], names[name] = peer_case(peer, layout, size, n_tokens), layout
    cases[PLAIN] = path_case(None, size, n_tokens)
    cases[STANDARD] = kind.step_case(None, size)
    steps = [way for way in ways() if way.reads == "auto"] if settings.whole_steps else []
    for way in steps:
        cases[f"step: {way.name}"] = kind.step_case(way, size)
    samples = measure(cases, timing)
    rows = []
    for name, layout in names.items():
        extra = [own - usual for own, usual in zip(samples[name], samples[PLAIN], strict=True)]
        step = samples.get(name.replace("path", "step"))
        rows.append(
            {
                "who": name.removeprefix("path: "),
                "layout": layout,
                "dim": size.dim,
                "batch": size.batch,
                "dtype": str(size.dtype).removeprefix("torch."),
                "n_parameters": n_parameters(size),
                "path": summary(samples[name]),
                "plain_path": summary(samples[PLAIN]),
                "standard_step": summary(samples[STANDARD]),
                "added": ratio(extra, samples[STANDARD]),
                "step_ratio": step and ratio(step, samples[STANDARD]),
            }
        )
    _print_rows(kind, size, rows)
    return rows


def _print_rows(kind: Kind, size: Size, rows: list[dict[str, Any]]) -> None:
    usual, plain = (rows[0][name]["median_s"] * 1e3 for name in ("standard_step", "plain_path"))
    tokens = f"{kind.n_tokens(size)} tokens" + (
        f", context {size.n_tokens}" if kind.is_decode else ""
    )
    title = (
        f"{kind.name}, d = {size.dim}, {rows[0]['n_parameters'] / 1e6:.0f} M parameters, "
        f"B = {size.batch}, {tokens}, {rows[0]['dtype']}, "
        f"{len(rows[0]['path']['samples_s'])} rounds: standard {usual:.4g} ms, of it the plain sum "
        f"{plain:.3g} ms"
    )
    print_steps(title, rows)


def _goals(kind: Kind, rows: list[dict[str, Any]]) -> list[Goal]:
    """Of what the dispatcher chooses, by the worst batch, at the median round."""
    return [
        Goal(
            f"{kind.name}, {layout}, d = {dim}, {dtype}, added to the step",
            limit,
            worst(
                100 * row["added"].median
                for row in rows
                if (row["dtype"], row["dim"], row["who"]) == (dtype, dim, f"{layout}, auto")
            ),
            unit=" %",
        )
        for (dtype, dim, layout), limit in kind.limits.items()
    ]
