"""DDP and FSDP2 over two processes: shared gradients and both phases are those of one process."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_shared_gradients import METHODS, Stack, _assert_equal, _backward
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def _wrapped(stack: Stack, kind: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(stack)
    mesh = init_device_mesh("cpu", (2,))
    if kind == "fsdp":
        for layer in stack.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(stack, mesh=mesh)  # in place
    return stack


def _run(rank: int, folder: str, kind: str) -> None:
    """Both processes have the same batch, so the mean of their gradients is that of one."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    torch.set_num_threads(1)
    for method in METHODS.values():
        expected = _backward(Stack(method, share_gradients=False).double())
        stack = Stack(method, share_gradients=True).double()
        model = _wrapped(stack, kind)
        _backward(model)
        gradients = _backward(model)  # DDP raises where a first step left a parameter out
        whole = {
            name.removeprefix("module."): g.full_tensor() if isinstance(g, DTensor) else g
            for name, g in gradients.items()
        }
        _assert_equal(whole, expected)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp of the whole"])
def test_gradients_over_two_processes(kind, tmp_path: Path):
    spawn(_run, (str(tmp_path), kind), nprocs=2)
