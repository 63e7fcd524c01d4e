"""Sequence sharding of an `AttnResForCausalLM`, switched on from outside by one call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from attnres.distributed.collectives import Group, reduce, split, spread
from attnres.distributed.rank_part import check_whole
from attnres.distributed.sequence import Outputs, SequenceSharded
from attnres.models.families import family_of
from attnres.models.front import Front, in_front
from attnres.models.joined import join_by


def shard_sequence(
    model: Any,
    group: Group | DeviceMesh | None = None,
    *,
    outputs: Outputs = "whole",
    gathers_logits: bool = True,
) -> None:
    """Let each rank of a group hold the sources of its own positions only; in place.

    Parameters, their names and checkpoints stay as they are. Every rank is given the same tokens;
    it finds the same logits, the same loss and, after a backward, the whole gradient of every
    parameter, so that nothing need be reduced over the group and a gradient norm is that of one
    process. `generate` works on all ranks at once, each with the same settings and seed.

    Args:
        model: an `AttnResForCausalLM`, with any residual method.
        group, outputs: as in `SequenceSharded`.
        gathers_logits: False makes each rank compute the final norm, the head and the loss for its
            own positions, wherever gradients are recorded: the logits that are returned are those
            of `own_positions`, the loss is that of all. Without gradients logits are gathered.

    Raises:
        ValueError: as `SequenceSharded`; a model that is sharded already, or cut into stages.
    """
    check_whole(model, "its stages hand on whole sequences, which are not sharded besides")
    base: Any = model.base_model
    family = family_of(base.config)
    final_norm = getattr(base, family.final_norm)
    if isinstance(final_norm.residual_of[0], SequenceSharded):
        raise ValueError("the model is sharded along the sequence already")
    reader = None if gathers_logits else final_norm
    sharded: Any = SequenceSharded(model.residual, group, outputs, reader)
    if not gathers_logits:
        _spread_weights(model.get_output_embeddings(), sharded.group)
        model.loss_function = loss_of_own(model.loss_function, sharded.group)
    join_by(sharded, base)


class SpreadWeights(Front):
    """Put before a head's own class: what it is used for here is a part, in the backward a summand.

    Not by the hook of a leaf: a tied weight is also that of the embedding, which runs whole.
    """

    spread: Callable[[Tensor], Tensor]

    def __getattr__(self, name: str) -> Any:
        value: Any = super().__getattr__(name)
        is_trained = isinstance(value, nn.Parameter) and torch.is_grad_enabled()
        return self.spread(value) if is_trained else value


def _spread_weights(head: Any, group: Group) -> None:
    head.__class__ = in_front(SpreadWeights, type(head))
    head.spread = lambda weight: spread(weight, group)


def loss_of_own(loss_function: Callable[..., Tensor], group: Group) -> Callable[..., Tensor]:
    """A loss of transformers, for the logits of own positions and the labels of all."""

    def loss(
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **settings: Any,
    ) -> Tensor:
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # pyright: ignore
        settings.update(ignore_index=ignore_index, vocab_size=vocab_size)
        if torch.is_grad_enabled():
            if num_items_in_batch is None:
                num_items_in_batch = (shift_labels != ignore_index).sum()
            shift_labels = split(shift_labels.unsqueeze(-1), group).squeeze(-1)
        mean = loss_function(
            logits=logits,
            labels=labels,
            num_items_in_batch=num_items_in_batch,
            shift_labels=shift_labels,
            **settings,
        )
        return reduce(mean, group) if torch.is_grad_enabled() else mean

    return loss
