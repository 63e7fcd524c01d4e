"""Runs of a second: a tiny Llama on a small text file, and what their tests compare."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from attnres.residual import AttnResConfig, ResidualConfig, StandardConfig
from attnres.train.data import DataConfig
from attnres.train.loop import train
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe

RESIDUALS: dict[str, ResidualConfig] = {
    "standard": StandardConfig(),
    "block": AttnResConfig(n_blocks=2),
    "full": AttnResConfig(),
}


def write_text(path: Path, n_words: int = 4000) -> Path:
    """About 20 kB, the same words each time."""
    random_words = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    lexicon = ["".join(random_words.choices(syllables, k=random_words.choice((1, 2, 3))))
               for _ in range(300)]  # fmt: skip
    words = random_words.choices(lexicon, weights=range(300, 0, -1), k=n_words)
    ends = random_words.choices((" ", " ", " ", ", ", ". ", ".\n"), k=n_words)
    path.write_text("".join(word + end for word, end in zip(words, ends, strict=True)))
    return path


def recipe(text: Path, residual: str = "block", optimizer: Any = "adamw", **changes: Any) -> Recipe:
    """10 steps of 128 tokens, logged each, saved after the fifth and the last."""
    own = Recipe(
        name="tiny",
        model=ModelConfig(
            dim=32, n_layers=2, n_heads=2, n_kv_heads=2, mlp_dim=64, residual=RESIDUALS[residual]
        ),
        data=DataConfig(path=str(text), tokenizer="bytes"),
        optim=OptimConfig(optimizer=optimizer, lr=1e-2, warmup_steps=2),
        n_steps=10,
        batch_size=4,
        seq_len=32,
        device="cpu",
        n_validation_sequences=8,
        n_probe_sequences=2,
        log_every=1,
        validate_every=5,
        probe_every=5,
        save_every=5,
    )
    return replace(own, **changes)


def interrupt_at(last: int):
    """A report that stops the run once `last` steps are logged."""

    def report(step: int, figures: dict[str, float]) -> None:
        if step >= last:
            raise KeyboardInterrupt

    return report


def train_until(own: Recipe, path: Path, last: int) -> None:
    try:
        train(own, path, interrupt_at(last))
    except KeyboardInterrupt:
        return
    raise AssertionError("the run was not interrupted")


def rows(path: Path, kind: str = "") -> list[dict[str, Any]]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if kind in ("", row["kind"])]


def repeatable(path: Path) -> list[dict[str, Any]]:
    """All rows, without what depends on the machine's mood."""
    moods = ("tokens_per_s", "peak_memory_bytes")
    return [{key: row[key] for key in row if key not in moods} for row in rows(path)]


def final_weights(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model" / "model.safetensors")


def checkpoints(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "checkpoint").iterdir())


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file's time of change and bytes."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def assert_same_run(actual: Path, expected: Path) -> None:
    """Metrics and final weights, to the last bit."""
    assert repeatable(actual) == repeatable(expected)
    weights = final_weights(actual)
    expected_weights = final_weights(expected)
    assert weights.keys() == expected_weights.keys()
    for name, tensor in expected_weights.items():
        assert weights[name].equal(tensor), name
