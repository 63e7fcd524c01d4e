"""Synthetic run folders."""

import json
import math
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest

GROWING = [1.0 + 0.5 * depth for depth in range(12)]
FLAT = [1.0 + 0.02 * (depth % 3) for depth in range(12)]
RESETTING = [1.0, 2.0, 3.0] * 4  # blocks of 3
BLOCKS = [3, 3, 3, 3]


def write_run(folder, name, *, method="standard", sizes=(), rms=None, n_steps=100, **overrides):
    """A finished run of 12 sublayers, probed twice; overrides go to the recipe."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "recipe.json").write_text(
        json.dumps(recipe(name, method, n_steps, len(sizes)) | overrides)
    )
    env = {"versions": {"torch": "2.13.0"}, "commit": "abc123", "device": "cpu", "n_threads": 2}
    (path / "env.json").write_text(json.dumps(env))
    rows = metrics(list(sizes), rms or GROWING, n_steps, best=4.0 if method == "standard" else 3.9)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe(name, method, n_steps, n_blocks):
    residual = {"method": method} | ({"n_blocks": n_blocks} if n_blocks else {})
    return {
        "name": name,
        "seed": 0,
        "n_steps": n_steps,
        "batch_size": 16,
        "seq_len": 256,
        "model": {"family": "llama", "dim": 128, "n_layers": 6, "residual": residual},
        "data": {"corpus": "plays"},
    }


def metrics(sizes, rms, n_steps, best):
    yield {
        "kind": "start",
        "step": 0,
        "n_params": 2612345,
        "n_residual_params": 3072 if sizes else 0,
        "layout_sizes": sizes,
    }
    for step in range(10, n_steps + 1, 10):
        loss = best + 3 * math.exp(-step / 20)
        row = {"kind": "train", "step": step, "n_tokens": 4096 * step, "lr": 1e-3, "grad_norm": 1.0}
        yield row | {"loss": loss, "tokens_per_s": 9000.0 + step}
        if step % (n_steps // 2) == 0:
            yield {"kind": "validation", "step": step, "loss": loss, "bits_per_byte": loss / 2}
            yield probe(step, sizes, rms)
    yield {"kind": "end", "step": n_steps, "seconds": 150.0, "peak_memory_bytes": 1234567890}


def probe(step, sizes, rms):
    row = {"kind": "probe", "step": step, "output_rms": rms, "stream_rms": rms}
    row |= {"grad_norm": [2.0 - 0.1 * depth for depth in range(len(rms))], "weights": None}
    if sizes:
        row["weights"] = [[1 / n] * n for n in n_sources(sizes)]
        row["weights_entropy"] = [math.log(n) for n in n_sources(sizes)]
        row["weights_max"] = [1 / n for n in n_sources(sizes)]
    return row | mixing(len(rms) + 1)


def mixing(n):
    """That of the standard residual over n - 1 sublayers."""
    return {
        "mixing": [[float(i <= reader) for i in range(n)] for reader in range(n)],
        "mixing_rank": 1,
        "mixing_row_sums": [1.0 + reader for reader in range(n)],
        "mixing_entropy": [math.log(1 + reader) for reader in range(n)],
        "mixing_reach": [reader / 2 for reader in range(n)],
        "mixing_sink": 0,
        "mixing_sink_share": 0.25,
    }


def n_sources(sizes):
    """Sources of each reader: the embedding, the finished blocks, the partial sum if begun."""
    ends = [0, *accumulate(sizes)]
    readers = range(ends[-1] + 1)
    return [sum(end <= reader for end in ends) + (reader not in ends) for reader in readers]


def edit_metrics(path: Path, edit):
    """Replace the lines of a run by what `edit` makes of them."""

    def edit_lines(text):
        rows = edit([json.loads(line) for line in text.splitlines()])
        return "".join(json.dumps(row) + "\n" for row in rows)

    edit_text(path, edit_lines)


def edit_text(path: Path, edit):
    file = path / "metrics.jsonl"
    file.write_text(edit(file.read_text()))


@pytest.fixture
def make():
    return SimpleNamespace(
        run=write_run,
        edit=edit_metrics,
        edit_text=edit_text,
        growing=GROWING,
        flat=FLAT,
        resetting=RESETTING,
        blocks=BLOCKS,
    )


def write_demo(folder):
    """A standard, a Block and a Full run."""
    write_run(folder, "standard")
    write_run(folder, "block", method="attn_res", sizes=BLOCKS, rms=RESETTING)
    write_run(folder, "full", method="attn_res", sizes=[1] * 12, rms=FLAT)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_demo(tmp_path / "demo")


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory):
    """The report of the demo, for tests that only read it."""
    from attnres.analysis.report import write_report

    return write_report(write_demo(tmp_path_factory.mktemp("runs") / "demo")).read_text("utf-8")
