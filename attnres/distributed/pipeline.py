"""A pipeline that runs: a plan under the runners of `torch.distributed.pipelining`.

    plan = plan_for(config, n_stages=4, n_virtual=2)
    pipeline = Pipeline(config, plan, schedule="interleaved", n_microbatches=8, seq_len=256)
    optimizer = torch.optim.AdamW(pipeline.module.parameters())
    loss = pipeline.backward(tokens_BT)  # 8 x 256, the same on every rank
    pipeline.clip_grad_norm_(1.0)
    optimizer.step()

Each rank has the parameters of its chunks alone. Loss and gradients are those of one process.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from attnres.distributed import world
from attnres.distributed.carried import carried
from attnres.distributed.data_parallel import whole
from attnres.distributed.failures import Notice
from attnres.distributed.passes import Bytes, Passes
from attnres.distributed.plan import PipelinePlan
from attnres.distributed.planned import check
from attnres.distributed.rank_part import RankPart
from attnres.distributed.saved_weights import load_weights
from attnres.distributed.shared_gradients import SharedGradients
from attnres.distributed.stage import OnRank
from attnres.distributed.units import ShardedUnits, WholeUnits
from attnres.layout import check_count
from attnres.models import AttnResCausalLMConfig

NO_TOKEN = -100  # a label that losses leave out


class Pipeline:
    """This rank's part of a pipeline; every call is made by all ranks, with the same arguments.

    Args:
        config: of the model.
        plan: of `plan_for`; stage r is rank r of the group.
        schedule: "gpipe", "1f1b", "interleaved" or "looped".
        n_microbatches: of one pass.
        batch_size, seq_len: sequences in a micro-batch, and tokens in a sequence.
        group: of the ranks; None is all.
        device, dtype: of the parameters; None are the CPU and what fresh weights have.
        autocast: dtype of automatic mixed precision in every forward; None is none.
        shard_over: a mesh of one dimension, whose ranks have the same stage and other rows: FSDP2
            shards the parameters over them, and gradients are their mean; None shards nothing.
        weights: a folder that `save_pretrained` wrote, of which a rank reads what it holds; None
            draws fresh weights from torch's generator, those that one process would draw.

    Raises:
        ValueError: before any rank waits for another: a group of another size, a plan of another
            model, micro-batches that the schedule cannot run, a loss that no stage can tell alone,
            weights that do not fit; after that: arguments that differ between ranks.
    """

    def __init__(
        self,
        config: AttnResCausalLMConfig,
        plan: PipelinePlan,
        *,
        schedule: str = "1f1b",
        n_microbatches: int,
        batch_size: int = 1,
        seq_len: int,
        group: Any = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        autocast: torch.dtype | None = None,
        shard_over: DeviceMesh | None = None,
        weights: str | Path | None = None,
    ):
        shape_BT = batch_size, seq_len
        check(config, plan, schedule, n_microbatches, shape_BT, group, shard_over)
        self.plan, self.n_microbatches, self.shape_BT = plan, n_microbatches, shape_BT
        self.group: Any = group or dist.group.WORLD
        self.rank, self.device = dist.get_rank(self.group), torch.device(device)
        self._columns = [] if shard_over is None else [shard_over.get_group()]
        self._check_alike(
            {
                "config": config.to_dict(),
                "plan": [
                    *(plan.layout.sizes, [chunk.start for chunk in plan.chunks]),
                    *(plan.n_virtual, plan.keep),
                ],
                "schedule": schedule,
                "n_microbatches": n_microbatches,
                "batch_size and seq_len": shape_BT,
                "dtype and autocast": [dtype, autocast],
                "weights": weights,
                "size of shard_over": None if shard_over is None else shard_over.size(),
                "state of torch's generator": torch.get_rng_state().tolist(),
            }
        )
        self._part = RankPart(config, plan.chunks, self.rank)
        self.module = self._part.model
        if weights is not None:
            load = partial(load_weights, self._part, Path(weights))
            world.together(load, self.group, *self._columns)
        _move(self.module, self.device, dtype)
        self._shared = SharedGradients(self.module, self._part.shared(self.rank), self.group)
        self._notice = Notice(self.group, self._columns, self._shared.groups, self.device)
        self._on_rank = OnRank(
            self.module,
            plan,
            carried(config, plan, shape_BT, dtype or torch.get_default_dtype()),
            units=self._units(shard_over),
        )
        if autocast is not None:
            self._on_rank.precision = partial(torch.autocast, self.device.type, autocast)
        self._passes = Passes(
            self._on_rank, self.rank, schedule, n_microbatches, self.group, self.device
        )

    def backward(self, tokens_BT: Tensor, n_accumulations: int = 1) -> float:
        """Add the gradients of the mean loss over all micro-batches; that loss, in nats a token.

        Args:
            tokens_BT: the sequences of all micro-batches, in order.
            n_accumulations: passes of which the gradient is the mean; this is one of them.

        Raises:
            ValueError: tokens of another shape.
            PipelineError: a rank has failed, which it names.
        """
        n_sequences = self.n_microbatches * self.shape_BT[0]
        if tokens_BT.shape != (n_sequences, self.shape_BT[1]):
            raise ValueError(
                f"{self.n_microbatches} micro-batches of {self.shape_BT[0]} sequences of "
                f"{self.shape_BT[1]} tokens are one tensor of shape "
                f"{[n_sequences, self.shape_BT[1]]}, got {list(tokens_BT.shape)}"
            )
        check_count("n_accumulations", n_accumulations)
        return self._guarded(lambda: self._backward(tokens_BT, n_accumulations))

    def loss(self, tokens_BT: Tensor) -> float:
        """The mean loss of any number of sequences in evaluation mode, in nats a token.

        They go through the same stages, a step's number at a time; what lacks is made up for by
        sequences that do not count. Ranks that share parameters may give other numbers.
        """
        if tokens_BT.dim() != 2 or tokens_BT.shape[1] != self.shape_BT[1] or not len(tokens_BT):
            raise ValueError(
                f"sequences of {self.shape_BT[1]} tokens are needed, got {list(tokens_BT.shape)}"
            )
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                return self._guarded(lambda: self._loss(tokens_BT))
        finally:
            self.module.train(was_training)

    def clip_grad_norm_(self, max_norm: float) -> float:
        """The norm of the gradient over all ranks, each parameter once; longer ones are scaled.

        To `max_norm`, as `torch.nn.utils.clip_grad_norm_` does.
        """
        ranks_of = self._part.ranks_of
        counted = [
            parameter.grad
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None and ranks_of[name][0] == self.rank
        ]
        own = whole(get_total_norm(counted)).to(self.device)
        square = own.double().square()
        dist.all_reduce(square, group=self.group)
        norm = square.sqrt().to(own.dtype)
        clip_grads_with_norm_(self.module.parameters(), max_norm, norm)
        return norm.item()

    @property
    def sent_bytes(self) -> Bytes:
        """What this rank has sent since it was built: of states and of their gradients."""
        return self._passes.sent_bytes

    @property
    def planned_bytes(self) -> Bytes:
        """What this rank sends in one `backward`, by the plan; `loss` sends no gradients."""
        return self._passes.planned_bytes

    @property
    def n_kept(self) -> int:
        """Sources of all micro-batches that are kept now; none between calls."""
        return len(self._on_rank.kept)

    def _check_alike(self, given: dict[str, Any]) -> None:
        """ValueError where ranks of the pipeline, or those that share its stages, differ."""
        world.check_alike(given, self.group)
        for group in self._columns:
            world.check_alike({**given, "stage": self.rank}, group)

    def _units(self, shard_over: DeviceMesh | None) -> WholeUnits:
        if shard_over is None:
            return WholeUnits()
        own = [chunk for chunk in self.plan.chunks if chunk.rank == self.rank]
        return ShardedUnits(self.module, shard_over, own)

    def _guarded(self, run: Callable[[], float]) -> float:
        try:
            return run()
        except Exception as error:
            self._passes.forget()
            self._notice.end(error, self._on_rank.doing)

    def _backward(self, tokens_BT: Tensor, n_accumulations: int) -> float:
        self._shared.set_aside()
        losses = self._passes.run(tokens_BT, tokens_BT, self.n_microbatches * n_accumulations)
        self._shared.add_up()
        return self._from_last(sum(losses) * n_accumulations)

    def _loss(self, tokens_BT: Tensor) -> float:
        n_in_pass, total = self.n_microbatches * self.shape_BT[0], 0.0
        for start in range(0, self._most(len(tokens_BT)), n_in_pass):
            part_BT = tokens_BT[start : start + n_in_pass]
            n_lacking = n_in_pass - len(part_BT)
            filled_BT = torch.cat([part_BT, tokens_BT[:1].expand(n_lacking, -1)])
            labels_BT = filled_BT.clone()
            labels_BT[len(part_BT) :] = NO_TOKEN
            losses = self._passes.run(filled_BT, labels_BT)
            counts = map(len, part_BT.split(self.shape_BT[0]))  # of micro-batches that count
            total += sum(n * loss for n, loss in zip(counts, losses, strict=False) if n)
        return self._from_last(total / len(tokens_BT))

    def _most(self, n: int) -> int:
        """Among the ranks that share parameters, which are gathered in each pass."""
        return max([n, *(other for group in self._columns for other in world.gathered(n, group))])

    def _from_last(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        last = dist.get_global_rank(self.group, self.plan.n_stages - 1)
        dist.broadcast(found, src=last, group=self.group)
        return found.item()


def _move(module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Parameters and buffers to the device; only parameters change their dtype."""
    nn.Module.to(module, device)
    if dtype is not None:
        for parameter in module.parameters():
            parameter.data = parameter.data.to(dtype)
