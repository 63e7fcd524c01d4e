"""A chunk of a model as a stage of `torch.distributed.pipelining`, which may keep what it got.

What a rank keeps of a micro-batch reaches its later chunks as one detached leaf a source, so that
their gradients add up in it. In the backward of the source's home chunk, which runs after all of
theirs, `_Deposits` adds that sum to the gradient of the source.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from attnres.distributed.carried import Carried
from attnres.distributed.plan import PipelinePlan
from attnres.distributed.units import WholeUnits
from attnres.models.part import Part


@dataclass
class OnRank:
    """What the chunks of a rank have in common."""

    model: Any  # an `AttnResForCausalLM` with at least their parameters
    plan: PipelinePlan
    carried: Sequence[Carried]  # by hop
    microbatches: Sequence[Tensor] = ()  # tokens of a step, BT each
    labels: Sequence[Tensor] = ()  # of each, BT; -100 is no token
    loss_divisor: int = 1
    kept: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # by micro-batch and block
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # of every forward
    units: WholeUnits = field(default_factory=WholeUnits)  # of the model's parameters
    doing: str = ""  # what is computed now, for errors

    def forget(self) -> None:
        """Drop what is kept of a step."""
        self.microbatches = self.labels = ()
        self.kept.clear()


class Stage(nn.Module):
    """One chunk: what it is sent in, what it sends out; the last gives the loss instead.

    A micro-batch's own part of the loss: its mean over tokens, divided by `loss_divisor`.
    """

    def __init__(self, on_rank: OnRank, index: int):
        super().__init__()
        self.on_rank = on_rank
        self.chunk = on_rank.plan.chunks[index]
        self.entry = on_rank.carried[index - 1] if index > 0 else None
        self.exit = on_rank.carried[index] if index + 1 < on_rank.plan.n_chunks else None
        self.microbatch = 0
        by_plan = any(hop.blocks is not None for hop in on_rank.carried)
        copies = on_rank.plan.copies if by_plan else ()
        used = [c for c in copies if index in (c.home, *c.readers) and c.rank == self.chunk.rank]
        named = [(c, c.block) for c in used if c.block is not None]
        self.keeps = [n for c, n in named if c.home == index < c.forward_end]  # for later chunks
        self.takes = [n for c, n in named if c.home < index]  # of what earlier chunks kept
        self.drops = [n for c, n in named if c.home < index == c.forward_end]  # no chunk takes it

    def forward(self, *received: Tensor) -> Any:
        run = self._loss if self.exit is None else self._state_out
        with self.on_rank.precision():
            found = self.on_rank.units.forward(run, received)
        if self.exit is None:
            return found
        (first, *sent), sources = found
        leaves = [self._keep(n, x) for n, x in zip(self.keeps, sources, strict=True)]
        self._drop()
        return (_Deposits.apply(first, leaves, *sources), *sent)

    def _loss(self, *received: Tensor) -> Tensor:
        part = Part(self.chunk.start, self.chunk.stop, self._state_in(received))
        self._drop()
        outputs = self.on_rank.model(
            inputs_embeds=_like(received[0], self.entry),
            labels=self.on_rank.labels[self.microbatch],
            use_cache=False,
            part=part,
        )
        return outputs.loss / self.on_rank.loss_divisor

    def _state_out(self, *received: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What is sent, and what is kept."""
        carried = self.exit
        assert carried is not None
        left: list[Any] = []
        if self.entry is None:
            state, inputs = None, {"input_ids": self.on_rank.microbatches[self.microbatch]}
        else:
            state = self._state_in(received)
            inputs = {"inputs_embeds": _like(received[0], self.entry)}
        part = Part(self.chunk.start, self.chunk.stop, state, left)
        self.on_rank.model.base_model(**inputs, use_cache=False, part=part)
        (state,) = left
        blocks, others = carried.take_apart(state)
        sent = (*(blocks[n] for n in carried.blocks or ()), *others)
        return sent, tuple(blocks[n] for n in self.keeps)

    def _state_in(self, received: Sequence[Tensor]) -> Any:
        entry = self.entry
        assert entry is not None
        numbers = entry.blocks or ()
        sources = dict(zip(numbers, received, strict=False))
        sources |= {n: self.on_rank.kept[self.microbatch, n] for n in self.takes}
        own = getattr(self.on_rank.model.residual, "as_source", lambda source: source)
        blocks = {n: own(source) for n, source in sources.items()}
        return entry.put_together(blocks, received[len(numbers) :])

    def _keep(self, block: int, source: Tensor) -> Tensor:
        leaf = source.detach().requires_grad_(source.requires_grad and torch.is_grad_enabled())
        self.on_rank.kept[self.microbatch, block] = leaf
        return leaf

    def _drop(self) -> None:
        for block in self.drops:
            del self.on_rank.kept[self.microbatch, block]


class _Deposits(torch.autograd.Function):
    """The identity; its backward hands on what later chunks left in the leaves of sources."""

    @staticmethod
    def forward(ctx: Any, passed: Tensor, leaves: list[Tensor], *sources: Tensor) -> Tensor:
        ctx.leaves = leaves
        return passed.view_as(passed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        found = [leaf.grad for leaf in ctx.leaves]
        for leaf in ctx.leaves:
            leaf.grad = None
        return gradient, None, *found


class TorchStage(PipelineStage):
    """A `Stage` for the runners of torch, told its micro-batch; counts the bytes that it sends."""

    submod: Stage

    def __init__(self, stage: Stage, device: torch.device, group: Any):
        outputs = stage.exit.tensors if stage.exit else (torch.empty((), device="meta"),)
        super().__init__(
            stage,
            stage.chunk.index,
            stage.on_rank.plan.n_chunks,
            device,
            input_args=_with_gradients(stage.entry.tensors if stage.entry else ()),
            output_args=_with_gradients(outputs),
            group=group,
        )
        self.sent_forward_bytes = self.sent_backward_bytes = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.submod.microbatch = fwd_chunk_id
        with _doing(self.submod, f"the forward of micro-batch {fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.submod.on_rank.units.before_backward(
            self.submod.chunk.index, kwargs.get("last_backward", False)
        )
        with _doing(self.submod, f"the backward of micro-batch {bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        self.sent_forward_bytes += sum(op.tensor.nbytes for op in ops)
        return ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        self.sent_backward_bytes += sum(op.tensor.nbytes for op in ops)
        return ops


@contextmanager
def _doing(stage: Stage, what: str) -> Iterator[None]:
    """Say on the rank what is computed; it stays said where that fails, not where a wait does."""
    chunk = stage.chunk
    stage.on_rank.doing = f"{what} through sublayers {chunk.start} to {chunk.stop - 1}"
    yield
    stage.on_rank.doing = ""


def _like(received: Tensor, carried: Carried | None) -> Tensor:
    """A hidden tensor BTD without memory of its own, for what a model's loop makes of its shape."""
    assert carried is not None
    return received.new_zeros(()).expand(carried.block_BTD.shape)


def _with_gradients(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What torch makes receive buffers from: one a gradient only where one is asked for."""
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
