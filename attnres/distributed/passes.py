"""Passes of torch's runners over the chunks of one rank, and the bytes that they send."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import pipelining

from attnres.distributed.schedules import ONE_CHUNK
from attnres.distributed.stage import OnRank, Stage, TorchStage

RUNNERS: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped": pipelining.ScheduleLoopedBFS,
}


class Bytes(NamedTuple):
    """Sent by one rank."""

    forward: int
    backward: int


class Passes:
    """Runs all micro-batches through the stages of a rank, forward and, with gradients, backward.

    Args:
        on_rank: what the stages have in common.
        rank: of the pipeline.
        schedule, n_microbatches: as in `Pipeline`.
        group: of the pipeline.
        device: of the parameters.
    """

    def __init__(
        self,
        on_rank: OnRank,
        rank: int,
        schedule: str,
        n_microbatches: int,
        group: Any,
        device: torch.device,
    ):
        self._on_rank, self._rank, self._n_microbatches = on_rank, rank, n_microbatches
        self._device = device
        self._stages = [
            TorchStage(Stage(on_rank, chunk.index), device, group)
            for chunk in on_rank.plan.chunks
            if chunk.rank == rank
        ]
        self._runner = RUNNERS[schedule](
            self._stages[0] if schedule in ONE_CHUNK else self._stages,
            n_microbatches,
            loss_fn=_as_it_is,
            scale_grads=False,
        )

    def run(self, tokens_BT: Tensor, labels_BT: Tensor, loss_divisor: int = 1) -> list[float]:
        """The loss of each micro-batch over `loss_divisor`, on the last rank; elsewhere none."""
        on_rank = self._on_rank
        on_rank.microbatches = self._divided(tokens_BT)
        on_rank.labels, on_rank.loss_divisor = self._divided(labels_BT), loss_divisor
        losses: list[Tensor] = []
        is_last = self._rank + 1 == on_rank.plan.n_stages
        last = {"target": tokens_BT, "losses": losses} if is_last else {}
        run = self._runner.step if torch.is_grad_enabled() else self._runner.eval
        run(return_outputs=False, **last)
        on_rank.units.after_pass()
        assert not on_rank.kept, f"kept beyond the plan: {list(on_rank.kept)}"
        self.forget()
        return [loss.item() for loss in losses]

    def forget(self) -> None:
        """Drop what is held of a pass, also of one that has failed."""
        self._on_rank.forget()
        for stage in self._stages:
            stage.clear_runtime_states()

    @property
    def sent_bytes(self) -> Bytes:
        """Of all passes so far."""
        return Bytes(
            sum(stage.sent_forward_bytes for stage in self._stages),
            sum(stage.sent_backward_bytes for stage in self._stages),
        )

    @property
    def planned_bytes(self) -> Bytes:
        """Of one pass with a backward, by the plan."""
        plan, carried = self._on_rank.plan, self._on_rank.carried
        forward = backward = 0
        for hop, each in zip(plan.hops, carried, strict=True):
            forward += each.n_bytes * (plan.chunks[hop.sender].rank == self._rank)
            backward += each.n_bytes * (plan.chunks[hop.receiver].rank == self._rank)
        return Bytes(forward * self._n_microbatches, backward * self._n_microbatches)

    def _divided(self, tokens_BT: Tensor) -> Sequence[Tensor]:
        return tokens_BT.to(self._device).long().chunk(self._n_microbatches)


def _as_it_is(loss: Tensor, target: Tensor) -> Tensor:
    """The last stage gives its loss itself."""
    return loss
