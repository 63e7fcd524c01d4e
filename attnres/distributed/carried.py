"""What a hop of a pipeline carries of a residual state, and how a state is made of it again.

Of a method that attends over the blocks of a layout the plan says which blocks are sent; what else
is in its state is sent at every hop: the partial sum and, of methods around the ordinary stream,
that stream. Of any other method the whole state is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from attnres.distributed.plan import PipelinePlan
from attnres.distributed.rank_part import cut_readers
from attnres.models import AttnResCausalLMConfig
from attnres.residual import Residual, Window
from attnres.residual.depth_reader import AttendsOverDepth
from attnres.residual.reading_state import ReadingState


def has_blocks(residual: Residual[Any]) -> bool:
    """Whether the blocks of its state are those of a plan: all of its layout, none forgotten."""
    return isinstance(residual, AttendsOverDepth) and not isinstance(residual, Window)


@dataclass(frozen=True)
class Carried:
    """The tensors of one hop, without values, and the shape of the state that they are of."""

    blocks: tuple[int, ...] | None  # that are sent; None where the whole state is
    block_BTD: Tensor  # what each is like
    others: tuple[Tensor, ...]  # the rest of the state
    spec: TreeSpec  # of the rest
    places: tuple[int, ...]  # of `others` among its leaves; the remaining ones are None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is sent, in order."""
        return (*[self.block_BTD] * len(self.blocks or ()), *self.others)

    @property
    def n_bytes(self) -> int:
        """Sent by one micro-batch, one way."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def take_apart(self, state: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The blocks of a state, where they go by the plan, and its other tensors."""
        blocks, rest = _split(state, self.blocks is not None)
        leaves, _ = tree_flatten(rest)
        return blocks, tuple(leaves[place] for place in self.places)

    def put_together(self, blocks: Mapping[int, Tensor], others: Sequence[Tensor]) -> Any:
        """A state of all its blocks, by their number, and its other tensors."""
        leaves: list[Any] = [None] * self.spec.num_leaves
        for place, tensor in zip(self.places, others, strict=True):
            leaves[place] = tensor
        state = tree_unflatten(leaves, self.spec)
        if self.blocks is None:
            return state
        return state._replace(blocks=tuple(blocks[n] for n in sorted(blocks)))


def carried(
    config: AttnResCausalLMConfig, plan: PipelinePlan, shape_BT: tuple[int, int], dtype: torch.dtype
) -> tuple[Carried, ...]:
    """What each hop of a plan carries.

    The residual runs once without values, each sublayer's output being like its input, and with
    gradients: without them a state may be another, of the same blocks.

    Args:
        config: of the model.
        plan: whose blocks are sent, where the method has them.
        shape_BT: of a micro-batch.
        dtype: of the embedding, and so of the state.
    """
    with torch.device("meta"):
        dim = config.text_config.hidden_size
        embed_BTD = torch.empty(*shape_BT, dim, dtype=dtype, requires_grad=True)
        residual = config.residual_config.build(dim, plan.layout.n_sublayers)
    cut_readers(residual, plan.chunks)
    starts = {chunk.start for chunk in plan.chunks[1:]}
    state, states = residual.start(embed_BTD), []
    for depth in range(max(starts, default=0)):
        _, state = residual.read(state, depth)
        state = residual.write(state, depth, embed_BTD)
        if depth + 1 in starts:
            states.append(state)
    by_plan = has_blocks(residual)
    return tuple(
        _carried(state, embed_BTD, hop.blocks if by_plan else None)
        for state, hop in zip(states, plan.hops, strict=True)
    )


def _carried(state: Any, embed_BTD: Tensor, blocks: tuple[int, ...] | None) -> Carried:
    leaves, spec = tree_flatten(_split(state, blocks is not None)[1])
    tensors = {place: leaf.detach() for place, leaf in enumerate(leaves) if leaf is not None}
    others = tuple(tensors.values())
    return Carried(blocks, embed_BTD.detach(), others, spec, tuple(tensors))


def _split(state: Any, by_plan: bool) -> tuple[tuple[Tensor, ...], Any]:
    """Blocks that go by the plan, and the state without them."""
    if by_plan and isinstance(state, ReadingState):  # without gradients
        return state.blocks, state.partial
    return (state.blocks, state._replace(blocks=())) if by_plan else ((), state)
