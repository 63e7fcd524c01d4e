"""Checkpoints of two processes: resumed there to the bit, by one process, and from one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import run_processes
from safetensors.torch import load_file
from test_data_parallel import LAST, assert_close_runs, train_ranks_until
from tiny_runs import assert_same_run, checkpoints, recipe, train_until
from torch.distributed.checkpoint.api import CheckpointException

from attnres.train import checkpoint, loop, sharded
from attnres.train.loop import train
from attnres.train.recipe import Recipe

pytestmark = pytest.mark.dist


def _on_two_ranks(rank: int, own: Recipe, folder: Path) -> dict[str, str]:
    train(own, folder / "whole")
    train_ranks_until(own, folder / "stopped")
    train_ranks_until(own, folder / "to one")
    train(own, folder / "from one")
    train(own, folder / "stopped")
    return {"full disk": _full_disk(rank, own, folder), "other": _other_model(own, folder)}


def _full_disk(rank: int, own: Recipe, folder: Path) -> str:
    """What every rank says where one cannot write."""
    write, entry_of = sharded.checkpoint.entry_of, checkpoint.entry_of

    def full(path):
        if rank == 1:
            raise OSError(28, "No space left on device", str(path))
        return write(path)

    checkpoint.entry_of = full
    try:
        train(own, folder / "full")
    except OSError as error:
        return str(error)
    finally:
        checkpoint.entry_of = entry_of
    return "nothing"


def _other_model(own: Recipe, folder: Path) -> str:
    other = replace(own, model=replace(own.model, mlp_dim=48))
    run = loop._prepare(other, loop.data.load_data(own.data))
    try:
        run.engine.restore(folder / "whole" / "checkpoint" / "step-00000010", run.optimizers)
    except ValueError as error:
        return str(error)
    finally:
        run.engine.close()
    return "nothing"


def test_checkpoints_of_two_processes(text, tmp_path):
    own = recipe(text, optimizer="muon")
    train(own, tmp_path / "one")
    train_until(own, tmp_path / "from one", LAST)
    said = run_processes(_on_two_ranks, 2, own, tmp_path, timeout_s=300)

    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    assert_close_runs(tmp_path / "from one", tmp_path / "one")
    train(own, tmp_path / "to one")
    assert_close_runs(tmp_path / "to one", tmp_path / "one")

    assert said[0] == said[1]
    assert "rank 1: [Errno 28] No space left on device" in said[0]["full disk"]
    assert not [name for name in checkpoints(tmp_path / "full") if name.startswith("step")]
    assert "mlp.gate_proj.weight is (64, 32) torch.float32 in the checkpoint" in said[0]["other"]

    path = tmp_path / "whole" / "checkpoint" / "step-00000010"
    _assert_is_sharded(path)
    _assert_damage_is_seen(path, tmp_path / "damaged" / path.name)


def _assert_is_sharded(path: Path) -> None:
    files = sorted(each.name for each in path.iterdir())
    assert files == [
        "manifest.json",
        *(f"rng-0000{i}.safetensors" for i in range(2)),
        *(f"shard-0000{i}-model-00001-of-00001.safetensors" for i in (1, 2)),
        "state.json",
    ]
    state = json.loads((path / "state.json").read_text())
    assert (state["step"], state["n_ranks"]) == (10, 2)
    weights = sharded.read_weights(path)
    exported = load_file(path.parents[1] / "model" / "model.safetensors")
    assert weights.keys() == exported.keys()
    for name, weight in exported.items():
        assert weights[name].equal(weight), name
        parts = [load_file(file) for file in path.glob("shard-*")]
        held = sum(part[name].numel() for part in parts if name in part)
        assert held == weight.numel(), name


def _assert_damage_is_seen(path: Path, copy: Path) -> None:
    shutil.copytree(path, copy)
    assert checkpoint.damage(copy) is None
    shard = next(copy.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert checkpoint.damage(copy) == f"{shard.name} differs from its sha256"
    shard.unlink()
    assert "No such file" in str(checkpoint.damage(copy))


def test_a_pickle_in_the_folder_is_never_opened(tmp_path):
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises((ValueError, OSError, KeyError, CheckpointException)):
        sharded.load(folder, torch.nn.Linear(2, 2), [])


def test_what_is_read_reaches_a_parameter_that_is_a_transposed_matrix(tmp_path):
    saved, built = (torch.nn.Linear(3, 2) for _ in range(2))
    for model in (saved, built):
        model.weight = torch.nn.Parameter(torch.randn(3, 2).T)
    checkpoint.save(tmp_path, 1, saved, [], {})
    sharded.load(tmp_path / "step-00000001", built, [])
    assert torch.equal(built.weight, saved.weight)
    assert torch.equal(built.bias, saved.bias)
