"""Sequence sharding of a model whose parameters FSDP2 shards, over a mesh or the same processes."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_processes
from test_sequence import BLOCK, TWO_PHASES, assert_all_equal, exact_model
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from attnres.distributed.data_parallel import own_rows, shard, whole
from attnres.distributed.sequence import gradient_norm
from attnres.distributed.sequence_model import shard_sequence

pytestmark = pytest.mark.dist
CASES = [(BLOCK, False, False), (BLOCK, True, True), (TWO_PHASES, True, False)]


def _step(model: Any, batches: list[Tensor]) -> dict[str, Tensor]:
    """Losses, norm and whole gradients of accumulated batches, each with all of its labels."""
    losses = [model(tokens_BT, labels=tokens_BT).loss for tokens_BT in batches]
    for loss in losses:
        loss.backward()
    found = {name: whole(each.grad).clone() for name, each in model.named_parameters()}
    found["norm"] = gradient_norm(model.parameters())
    clipped = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"loss": torch.stack(losses).detach(), "clipped": whole(clipped), **found}


def _batches() -> list[Tensor]:
    from tiny_models import tokens

    return [tokens(2, 11), tokens(4, 2, seed=3)]


def _check(rank: int, sizes: tuple[int, int]) -> None:
    """Args: sizes of a mesh of processes with other rows, and of those with other positions."""
    data, sequence = (init_device_mesh("cpu", sizes, mesh_dim_names=("d", "s"))[x] for x in "ds")
    for method, is_sequence_first, gathers_logits in CASES:
        name = f"{method}, {is_sequence_first=}, {gathers_logits=}"
        expected = _step(exact_model(method, tie_word_embeddings=True), _batches())
        model = exact_model(method, tie_word_embeddings=True)
        model.activation_checkpointing_enable()
        if is_sequence_first:
            shard_sequence(model, sequence, gathers_logits=gathers_logits)
        shard(model, data if data.size() > 1 else sequence)
        if not is_sequence_first:
            shard_sequence(model, sequence, gathers_logits=gathers_logits)
        assert all(isinstance(each, DTensor) for each in model.parameters())
        found = _step(model.train(), [own_rows(batch_BT, data) for batch_BT in _batches()])
        dist.all_reduce(found["loss"], group=data.get_group())
        found["loss"] /= data.size()
        assert_all_equal(found, expected, name)


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2)], ids=["same processes", "mesh"])
def test_gradients_are_those_of_one_process(sizes):
    run_processes(_check, sizes[0] * sizes[1], sizes, timeout_s=300)
