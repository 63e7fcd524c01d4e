"""Stages whose parameters are sharded: what is gathered when, what is refused, how it ends."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipelines import SEQ_LEN, Case, config, tokens
from processes import run_processes
from test_pipeline_errors import _die, _raise, found_by
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode

from attnres.distributed import Pipeline, PipelineError, plan_for, world
from attnres.distributed.data_parallel import own_rows

pytestmark = pytest.mark.dist
COLLECTIVES = ("_allgather", "_reduce_scatter")
ROUND = {"schedule": "interleaved", "n_microbatches": 4, "seq_len": SEQ_LEN}


def _mesh() -> DeviceMesh:
    return world.mesh_of("cpu", 2, timeout_s=120)


def _pipeline(mesh: DeviceMesh, **changes: Any) -> Pipeline:
    case = Case()
    made = config(case)
    torch.manual_seed(0)
    return Pipeline(
        made,
        plan_for(made, 2, 2, case.cuts),
        group=mesh["pipeline"].get_group(),
        **{**ROUND, "shard_over": mesh["data"], **changes},
    )


class _Calls(TorchDispatchMode):
    """`CommDebugMode` follows modules, of which another pass begins before one has its backward."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def _counted(pipeline: Pipeline, tokens_BT: Any) -> Counter[str]:
    with _Calls() as calls:
        pipeline.backward(tokens_BT)
    return Counter({name: calls.counts[f"c10d.{name}_base_"] for name in COLLECTIVES})


def _refused(**changes: Any) -> str:
    with pytest.raises(ValueError, match=r"shard_over|processes differ") as error:
        _pipeline(**changes)
    return str(error.value)


def _on_a_mesh(rank: int) -> tuple[int, Counter[str], list[str]]:
    mesh = _mesh()
    _assert_neighbours_share_a_stage(mesh, rank)
    said = [
        _refused(mesh=mesh, shard_over=mesh),
        _refused(mesh=mesh, shard_over=mesh["data"] if rank < 2 else None),
        _refused(mesh=mesh, n_microbatches=4 + 4 * (rank % 2)),
    ]
    pipeline = _pipeline(mesh)
    n_layers = sum(1 for x in pipeline.module.base_model.layers if list(x.parameters()))
    counts = _counted(pipeline, own_rows(tokens(8), mesh["data"]))
    assert counts == _counted(pipeline, own_rows(tokens(8), mesh["data"]))
    _assert_numbers_of_sequences_may_differ(pipeline, rank % 2)
    return n_layers, counts, said


def _assert_neighbours_share_a_stage(mesh: DeviceMesh, rank: int) -> None:
    """Who sends most to whom is on one machine; hops, which are smaller, go between machines."""
    ranks = {
        name: dist.get_process_group_ranks(mesh[name].get_group()) for name in ("data", "pipeline")
    }
    assert ranks == {
        "data": [rank // 2 * 2, rank // 2 * 2 + 1],
        "pipeline": [rank % 2, rank % 2 + 2],
    }


def _assert_numbers_of_sequences_may_differ(pipeline: Pipeline, column: int) -> None:
    """One column has a sequence more, which takes it another pass."""
    n_sequences = 4
    first = pipeline.loss(tokens(n_sequences))
    found = pipeline.loss(tokens(n_sequences + column))
    last = pipeline.loss(tokens(n_sequences + 1)[n_sequences:])
    assert found == pytest.approx((n_sequences * first + column * last) / (n_sequences + column))


def test_a_pass_gathers_and_scatters_each_unit_once():
    for n_layers, counts, (flat, both, rows) in run_processes(_on_a_mesh, 4, timeout_s=600):
        n_units = n_layers + 1  # and what is beside the layers
        assert counts == dict.fromkeys(COLLECTIVES, n_units)
        assert flat == "shard_over must be a mesh of one dimension, got 2: slice it"
        assert "size of shard_over is 2 on rank 0 and null on rank 1" in both
        assert "n_microbatches is 4 on rank 0 and 8 on rank 1" in rows


def _fail_on_a_mesh(rank: int, folder: str, n_found: int, how: Any) -> None:
    mesh = _mesh()
    pipeline = _pipeline(mesh)
    own_BT = own_rows(tokens(8), mesh["data"])
    pipeline.backward(own_BT)
    if rank == 1:
        layer = next(
            x for x in pipeline.module.base_model.layers if x.mlp.up_proj.weight is not None
        )
        layer.mlp.forward = how
    start = time.monotonic()
    with pytest.raises(PipelineError) as error:
        pipeline.backward(own_BT)
    found = str(error.value), pipeline.n_kept, time.monotonic() - start
    torch.save(found, Path(folder, str(rank)))
    while sum(1 for _ in Path(folder).iterdir()) < n_found:  # who ends first ends the others
        time.sleep(0.1)


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_of_the_mesh_which_name_it(tmp_path):
    for words, n_kept, took_s in found_by(4, range(4), tmp_path, _fail_on_a_mesh, _raise):
        assert words.startswith("rank 1 failed in the forward of micro-batch 0 through sublayers ")
        assert words.endswith("FloatingPointError: a wrong number")
        assert n_kept == 0
        assert took_s < 30  # the group's own limit is 120


@pytest.mark.slow
def test_a_rank_that_dies_ends_all_of_the_mesh(tmp_path):
    for words, n_kept, took_s in found_by(4, (0, 2, 3), tmp_path, _fail_on_a_mesh, _die):
        assert "has lost a rank that said nothing" in words
        assert n_kept == 0
        assert took_s < 30
