"""One model over many processes that have different rows of each batch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from attnres.distributed import world
from attnres.distributed.data_parallel import own_rows, replicate, shard, whole
from attnres.train import sharded
from attnres.train.engine import OneProcess
from attnres.train.recipe import Recipe


class DataParallel(OneProcess):
    """Every process has the whole model (DDP) or gathers it unit by unit (FSDP2).

    Of an equal number of rows a process, the mean of the means is the mean of the batch, so a
    recipe has the losses of one process, to rounding.
    """

    def __init__(self, recipe: Recipe, vocab_size: int, mesh: DeviceMesh):
        if recipe.batch_size % mesh.size():
            raise ValueError(
                f"batch_size={recipe.batch_size} does not divide over {mesh.size()} processes"
            )
        if recipe.compile and recipe.data_parallel == "fsdp":
            raise ValueError("compile=True goes with data_parallel=ddp, not with fsdp")
        super().__init__(recipe, vocab_size)
        torch.manual_seed(recipe.seed + world.rank())  # dropout differs where rows do
        self.is_first = world.rank() == 0
        self._mesh = mesh
        self._saver = sharded.Saver()
        self._is_sharded = recipe.data_parallel == "fsdp"
        if self._is_sharded:
            shard(self.model, mesh, bfloat16=recipe.precision == "bfloat16")
        else:
            self.forward = replicate(self.forward, mesh)  # type: ignore[arg-type]

    def backward(self, batches: Sequence[Tensor]) -> float:
        total = 0.0
        for i, tokens_BT in enumerate(batches):
            with self._reduced_later() if i + 1 < len(batches) else nullcontext():
                part = self._loss(own_rows(tokens_BT, self._mesh)) / len(batches)
                part.backward()
            total += part.item()
        return self._sum(total) / self._mesh.size()

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor) -> float:
        own_BT = own_rows(tokens_BT, self._mesh)
        asked = own_BT if len(own_BT) else tokens_BT[:1]  # every rank takes part in a forward
        return self._sum(self._loss(asked).item() * len(own_BT)) / len(tokens_BT)

    def clip_grad_norm_(self, max_norm: float) -> float:
        return whole(nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)).item()

    def newest(self, folder: Path) -> tuple[Path, dict[str, Any]] | None:
        return world.from_first(lambda: super(DataParallel, self).newest(folder))

    def restore(self, path: Path, optimizers: Sequence[Optimizer]) -> None:
        sharded.load(path, self.model, optimizers)

    def save(
        self, folder: Path, step: int, optimizers: Sequence[Optimizer], state: dict, keep: int
    ) -> None:
        self._saver.save(folder, step, self.model, optimizers, state, keep)

    def export(self, path: Path, checkpoints: Path) -> None:
        self._saver.wait()
        world.from_first(lambda: sharded.export(self.config, checkpoints, path))

    def close(self) -> None:
        self._saver.close()

    def _reduced_later(self) -> AbstractContextManager[None]:
        """FSDP2 reduces each gradient at once: whole ones would not fit."""
        if isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return nullcontext()

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self._mesh.get_group())
        return total.item()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._is_sharded else super()._autocast()
