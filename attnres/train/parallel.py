"""One model over many processes: whole on each, gathered by each, or cut into stages."""

from abc import ABC
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

from attnres.distributed import Pipeline, plan_for, world
from attnres.distributed.data_parallel import average_, own_rows, replicate, shard, whole
from attnres.train import sharded
from attnres.train.engine import Engine, OneProcess, counts
from attnres.train.recipe import Recipe
from attnres.train.saver import Saver


class ManyProcesses(Engine, ABC):
    """What engines of many processes share: rows of a batch, sums over them, checkpoints.

    Of an equal number of rows a process, the mean of the means is the mean of the batch, so a
    recipe has the losses of one process, to rounding.
    """

    def _join(self, recipe: Recipe, mesh: DeviceMesh) -> None:
        """Args: mesh of the processes that have different rows."""
        if recipe.batch_size % mesh.size():
            raise ValueError(
                f"batch_size={recipe.batch_size} does not divide over {mesh.size()} processes"
            )
        self.is_first = world.rank() == 0
        self._mesh, self.data_group = mesh, mesh.get_group()
        self._saver = Saver(recipe.timeout_s)

    def restore(self, path: Path, optimizers: Sequence[Optimizer]) -> None:
        sharded.load(path, self.module, optimizers)

    def save(
        self, folder: Path, step: int, optimizers: Sequence[Optimizer], state: dict, keep: int
    ) -> None:
        self._saver.save(folder, step, self.module, optimizers, state, keep)

    def export(self, path: Path, checkpoints: Path) -> None:
        self._saver.wait()
        world.from_first(lambda: sharded.export(self.config, checkpoints, path))

    def close(self) -> None:
        self._saver.close()

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self._mesh.get_group())
        return total.item()


class DataParallel(ManyProcesses, OneProcess):
    """Every process has the whole model, or gathers it unit by unit."""

    def __init__(self, recipe: Recipe, vocab_size: int, mesh: DeviceMesh):
        if recipe.compile and recipe.data_parallel == "fsdp":
            raise ValueError("compile=True goes with data_parallel=ddp, not with fsdp")
        self._join(recipe, mesh)
        self._is_sharded = recipe.data_parallel == "fsdp"
        super().__init__(recipe, vocab_size)
        torch.manual_seed(recipe.seed + world.rank())  # dropout differs where rows do
        if self._is_sharded:
            shard(self.model, mesh, bfloat16=recipe.precision == "bfloat16")
        else:
            self.forward = replicate(self.forward, mesh)  # type: ignore[arg-type]  a module, also compiled

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

    def _reduced_later(self) -> AbstractContextManager[None]:
        """FSDP2 reduces each gradient at once: whole ones would not fit."""
        if isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return nullcontext()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._is_sharded else super()._autocast()


class Pipelined(ManyProcesses):
    """Every process has the chunks of its stage; accumulations are the micro-batches of a pass.

    Where several processes have the same stage, each passes its own rows. They share its parameters
    under FSDP2; else each has a copy, and gradients are averaged after the pass.
    """

    def __init__(self, recipe: Recipe, vocab_size: int, device: torch.device, mesh: DeviceMesh):
        self._join(recipe, mesh["data"])
        self.device, self.config = device, recipe.model.config(vocab_size, recipe.seq_len)
        self._is_copied = self._mesh.size() > 1 and recipe.data_parallel == "ddp"
        is_sharded = self._mesh.size() > 1 and not self._is_copied
        self._pipeline = Pipeline(
            self.config,
            plan_for(self.config, recipe.pipeline, recipe.virtual_stages),
            schedule=recipe.runner,
            n_microbatches=recipe.n_accumulations,
            batch_size=recipe.batch_size // self._mesh.size(),
            seq_len=recipe.seq_len,
            group=mesh["pipeline"].get_group(),
            device=device,
            autocast=torch.bfloat16 if recipe.precision == "bfloat16" else None,
            shard_over=self._mesh if is_sharded else None,
        )
        torch.manual_seed(recipe.seed + world.rank())  # dropout differs where rows or layers do
        self.module = self._pipeline.module.train()
        if recipe.checkpoint_gradients:
            self._pipeline.module.activation_checkpointing_enable()
        self.n_batches_of_loss = recipe.n_accumulations
        self.stage_group = mesh["pipeline"].get_group()

    def backward(self, batches: Sequence[Tensor]) -> float:
        own = [own_rows(tokens_BT, self._mesh) for tokens_BT in batches]
        loss = self._pipeline.backward(torch.cat(own))
        if self._is_copied:
            average_([p.grad for p in self.module.parameters() if p.grad is not None], self._mesh)
        return self._sum(loss) / self._mesh.size()

    def loss(self, tokens_BT: Tensor) -> float:
        own_BT = own_rows(tokens_BT, self._mesh)
        asked = own_BT if len(own_BT) else tokens_BT[:1]  # every rank takes part in a pass
        return self._sum(self._pipeline.loss(asked) * len(own_BT)) / len(tokens_BT)

    def clip_grad_norm_(self, max_norm: float) -> float:
        return self._pipeline.clip_grad_norm_(max_norm)

    def probe(self, tokens_BT: Tensor) -> None:
        """No process has all depths; the first row of the metrics says so."""

    def describe(self) -> dict[str, Any]:
        from attnres.models import AttnResForCausalLM

        with torch.device("meta"):
            found = counts(AttnResForCausalLM(self.config))
        return {**found, "without_probe": "the model is cut into stages"}
