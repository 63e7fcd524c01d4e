"""Runs on a mesh of stages and of processes that share them, against one process."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import run_processes
from test_data_parallel import LAST, assert_close_runs, refusal, train_ranks_until
from tiny_runs import assert_same_run, recipe, train_until

from attnres.train.loop import train
from attnres.train.recipe import Recipe

pytestmark = pytest.mark.dist


def _recipe(text: Path) -> Recipe:
    """Two stages, of two processes each where there are four."""
    changes = {"batch_size": 4, "n_accumulations": 4, "pipeline": 2, "save_every": 2}
    return recipe(text, "block", "muon", n_validation_sequences=17, **changes)  # 9 rows and 8


def _on_four_ranks(rank: int, own: Recipe, folder: Path) -> tuple[int, str]:
    odd = refusal(replace(own, batch_size=3), folder / "odd")
    train(own, folder / "mesh")
    seed = torch.initial_seed()
    train(replace(own, data_parallel="ddp", n_steps=3), folder / "copies")
    train_ranks_until(own, folder / "stopped")
    train(own, folder / "stopped")
    train_ranks_until(own, folder / "to others")
    train(replace(own, pipeline=1), folder / "to others")
    train_ranks_until(replace(own, pipeline=1), folder / "from others")
    train(own, folder / "from others")
    train_ranks_until(own, folder / "to one")
    train(own, folder / "from one")
    return seed, odd


def test_a_mesh_runs_as_one_process_and_its_checkpoints_fit_others(text, tmp_path):
    own = _recipe(text)
    alone = replace(own, pipeline=1)
    train(alone, tmp_path / "one")
    train(replace(alone, n_steps=3), tmp_path / "three steps")
    train_until(alone, tmp_path / "from one", LAST)
    found = run_processes(_on_four_ranks, 4, own, tmp_path, timeout_s=600)
    assert len({seed for seed, _ in found}) == 4  # of what drops anything
    assert {odd for _, odd in found} == {"batch_size=3 does not divide over 2 processes"}
    train(alone, tmp_path / "to one")
    assert_same_run(tmp_path / "stopped", tmp_path / "mesh")
    for name in ("mesh", "to others", "from others", "to one", "from one"):
        assert_close_runs(tmp_path / name, tmp_path / "one", has_probes=False)
    assert_close_runs(tmp_path / "copies", tmp_path / "three steps", has_probes=False)
