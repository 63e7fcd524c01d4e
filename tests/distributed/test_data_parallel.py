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
from attnres.train import loop
from attnres.train.loop import train
from attnres.train.recipe import Recipe

pytestmark = pytest.mark.dist
LAST = 6  # steps done before a run is stopped


def _recipes(text: Path) -> dict[str, Recipe]:
    two_phase = recipe(text, "full", checkpoint_gradients=True)
    model = replace(two_phase.model, residual=TwoPhaseConfig(n_blocks=2), tie_embeddings=False)
    return {
        "fsdp": recipe(text, batch_size=2, n_accumulations=2, save_every=2),
        "two_phase": replace(two_phase, model=model),
        "ddp": recipe(text, "full", "muon", data_parallel="ddp", n_accumulations=2, batch_size=2),
        "muon": recipe(text, "block", "muon"),
    }


def train_ranks_until(own: Recipe, path: Path) -> None:
    """Stop every rank at once, as a signal to all of them does."""
    step = loop._step

    def stopping(run, number):
        if number == LAST:
            raise KeyboardInterrupt
        return step(run, number)

    loop._step = stopping
    try:
        train(own, path)
    except KeyboardInterrupt:
        return
    finally:
        loop._step = step


def _train_each(rank: int, recipes: dict[str, Recipe], folder: Path) -> None:
    for name, own in recipes.items():
        train(own, folder / name)


def assert_close_runs(actual: Path, expected: Path, has_probes: bool = True) -> None:
    """All rows and the final weights, to rounding; `actual` may lack probes."""
    rel = 1e-4
    found = [row for row in repeatable(actual) if has_probes or row["kind"] != "probe"]
    rows = [row for row in repeatable(expected) if has_probes or row["kind"] != "probe"]
    for row, other in zip(found, rows, strict=True):
        assert row.keys() - {"without_probe"} == other.keys()
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


def _pipelined(text: Path) -> dict[str, Recipe]:
    cut = recipe(text, "block", "muon", batch_size=2, n_accumulations=4, pipeline=2, save_every=2)
    return {
        "stages": cut,
        "chunks": replace(cut, virtual_stages=2, checkpoint_gradients=True),
        "gpipe": replace(cut, schedule="gpipe", n_validation_sequences=7),
    }


def _train_in_stages(rank: int, recipes: dict[str, Recipe], folder: Path) -> None:
    _train_each(rank, recipes, folder / "two")
    train_ranks_until(recipes["stages"], folder / "to others")
    train(replace(recipes["stages"], pipeline=1), folder / "to others")


def test_stages_run_as_one_process_and_their_checkpoints_fit_others(text, tmp_path):
    recipes = _pipelined(text)
    for name, own in recipes.items():
        train(replace(own, pipeline=1, virtual_stages=1), tmp_path / "one" / name)
    run_processes(_train_in_stages, 2, recipes, tmp_path, timeout_s=300)
    for name in recipes:
        assert_close_runs(tmp_path / "two" / name, tmp_path / "one" / name, has_probes=False)
    assert_close_runs(tmp_path / "to others", tmp_path / "one" / "stages", has_probes=False)


def test_one_process_says_how_to_start_more(text, tmp_path):
    with pytest.raises(ValueError, match=r"pipeline=4 takes 4 .* torchrun --nproc-per-node 4 -m"):
        train(recipe(text, pipeline=4, n_accumulations=4), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def refusal(own: Recipe, path: Path) -> str:
    """Why a run cannot be, before its folder is made."""
    with pytest.raises(ValueError, match="process") as error:
        train(own, path)
    assert not path.exists()
    return str(error.value)


def _refusals(rank: int, own: Recipe, folder: Path) -> list[str]:
    refused = (
        replace(own, seed=rank),
        replace(own, batch_size=3),
        replace(own, pipeline=3, n_accumulations=3),
    )
    return [refusal(each, folder / "run") for each in refused]


def test_what_cannot_run_is_refused_by_all_alike(text, tmp_path):
    expected = [
        "the processes differ: seed is 0 on rank 0 and 1 on rank 1",
        "batch_size=3 does not divide over 2 processes",
        "pipeline=3 takes 3 processes or a multiple of that, and there are 2: "
        "torchrun --nproc-per-node 3 -m attnres train RECIPE --pipeline 3",
    ]
    assert run_processes(_refusals, 2, recipe(text), tmp_path) == [expected] * 2


def test_two_processes_run_as_one(text, tmp_path):
    recipes = _recipes(text)
    for name, own in recipes.items():
        train(own, tmp_path / "one" / name)
    run_processes(_train_each, 2, recipes, tmp_path / "two", timeout_s=300)
    for name in recipes:
        assert_close_runs(tmp_path / "two" / name, tmp_path / "one" / name)
