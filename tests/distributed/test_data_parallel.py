"""Runs over two processes against one: losses, gradient norms, probes, weights, checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_processes
from tiny_runs import (
    final_weights,
    recipe,
    repeatable,
)

from attnres.residual import TwoPhaseConfig
from attnres.train.loop import train
from attnres.train.recipe import Recipe

pytestmark = pytest.mark.dist


def _recipes(text: Path) -> dict[str, Recipe]:
    two_phase = recipe(text, "full", checkpoint_gradients=True)
    model = replace(two_phase.model, residual=TwoPhaseConfig(n_blocks=2), tie_embeddings=False)
    return {
        "fsdp": recipe(text, batch_size=2, n_accumulations=2, save_every=2),
        "two_phase": replace(two_phase, model=model),
        "ddp": recipe(text, "full", "muon", data_parallel="ddp", n_accumulations=2, batch_size=2),
        "muon": recipe(text, "block", "muon"),
    }


def _train_each(rank: int, recipes: dict[str, Recipe], folder: Path) -> None:
    for name, own in recipes.items():
        train(own, folder / name)


def assert_close_runs(actual: Path, expected: Path, rel: float = 1e-4) -> None:
    """All rows and the final weights, to rounding."""
    for row, other in zip(repeatable(actual), repeatable(expected), strict=True):
        assert row.keys() == other.keys()
        for key, value in other.items():
            _assert_close(row[key], value, rel, f"{key} at {other['kind']} {other['step']}")
    weights = final_weights(actual)
    for name, expected_weight in final_weights(expected).items():
        torch.testing.assert_close(weights[name], expected_weight, rtol=1e-2, atol=2e-4)


def _assert_close(value: Any, expected: Any, rel: float, name: str) -> None:
    if isinstance(expected, list):
        for one, two in zip(value, expected, strict=True):
            _assert_close(one, two, rel, name)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=rel, abs=rel), name
    else:
        assert value == expected, name


def test_two_processes_run_as_one(text, tmp_path):
    recipes = _recipes(text)
    for name, own in recipes.items():
        train(own, tmp_path / "one" / name)
    run_processes(_train_each, 2, recipes, tmp_path / "two", timeout_s=300)
    for name in recipes:
        assert_close_runs(tmp_path / "two" / name, tmp_path / "one" / name)
