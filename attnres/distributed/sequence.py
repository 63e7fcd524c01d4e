"""Sequence sharding: each rank of a group holds the sources of its own positions only.

    read → all-gather → sublayer → split, or reduce-scatter → write        arXiv:2603.15031, 4.2

Depth attention acts on each token alone, so any residual method can be cut along the sequence. The
sublayers see all positions: they run whole on every rank, or tensor-parallel over the same group.
Ranks of the group are given the same tokens, and the same seed where sublayers drop anything.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from attnres.distributed.collectives import (
    Group,
    gather,
    reduce,
    reduce_scatter,
    share,
    split,
    total,
)
from attnres.residual.base import Mix, Output, Parts, Residual, Ways, through

Outputs = Literal["whole", "partial"]


class ShardedState(NamedTuple):
    """A residual state of this rank's positions."""

    state: Any
    n_tokens: int | None  # of the whole sequence; None where every rank holds all of it


class SequenceSharded:
    """The contract of a residual, over states of which each rank holds its own positions.

    It owns no parameters: those of `residual` stay where they are, under their names. Each rank
    finds a part of their gradients, which are summed over the group once a backward, so that every
    rank ends with the whole gradient, as for the parameters of sublayers that run whole.

    A sequence of fewer positions than ranks is not cut where no gradients are recorded: decoding
    needs no message of this.

    Args:
        residual: any method.
        group: of processes, or a mesh of one dimension; None is all processes.
        outputs: "whole" where every rank has a sublayer's whole output; "partial" where each has
            a summand of it, as before the all-reduce that ends a tensor-parallel sublayer. In both
            cases a sublayer gives back the whole gradient of its input.
        output_reader: a module, such as the final norm, that is to get its own positions only
            wherever gradients are recorded; theirs are then summed besides. None gathers.

    Raises:
        ValueError: no process group, a process that is not in it, unknown `outputs`.
    """

    def __init__(
        self,
        residual: Residual[Any],
        group: Group | DeviceMesh | None = None,
        outputs: Outputs = "whole",
        output_reader: nn.Module | None = None,
    ):
        if outputs not in get_args(Outputs):
            raise ValueError(f"outputs must be 'whole' or 'partial', got {outputs!r}")
        self.residual, self.group = residual, process_group(group)
        self.outputs: Outputs = outputs
        self.output_reader = output_reader
        self._summed = WeakIdKeyDictionary()  # parameters whose gradients are summed

    @property
    def n_sublayers(self) -> int:
        return self.residual.n_sublayers

    def has_ways(self, depth: int) -> bool:
        return self.residual.has_ways(depth)

    def start(self, embed_BTD: Tensor) -> ShardedState:
        n_tokens = embed_BTD.shape[-2]
        if not torch.is_grad_enabled() and n_tokens < self.group.size():
            return ShardedState(self.residual.start(embed_BTD), None)
        self._sum_gradients()
        return ShardedState(self.residual.start(split(embed_BTD, self.group)), n_tokens)

    def read(self, sharded: ShardedState, depth: int) -> tuple[Mix, ShardedState]:
        mix, state = self.residual.read(sharded.state, depth)
        sharded = sharded._replace(state=state)
        if isinstance(mix, Ways):
            return Ways(*(self._gathered(way_BTD, sharded) for way_BTD in mix)), sharded
        return self._gathered(mix, sharded), sharded

    def read_normed(
        self, sharded: ShardedState, depth: int, norm: Callable[[Tensor], Tensor]
    ) -> tuple[Mix, ShardedState]:
        mix, sharded = self.read(sharded, depth)
        return through(mix, norm), sharded

    def write(self, sharded: ShardedState, depth: int, out_BTD: Output) -> ShardedState:
        if isinstance(out_BTD, Parts):
            own_BTD = Parts(*(self._own(part_BTD, sharded, depth) for part_BTD in out_BTD))
        else:
            own_BTD = self._own(out_BTD, sharded, depth)
        return sharded._replace(state=self.residual.write(sharded.state, depth, own_BTD))

    def finish(self, sharded: ShardedState) -> Tensor:
        h_BTD = self.residual.finish(sharded.state)
        if torch.is_grad_enabled() and self.output_reader is not None:
            return h_BTD
        return self._gathered(h_BTD, sharded)

    def stream(self, sharded: ShardedState) -> Tensor:
        """As in `Residual`, of all positions."""
        return self._gathered(self.residual.stream(sharded.state), sharded)

    def weights(self, sharded: ShardedState, depth: int) -> Tensor:
        """As in `Residual`, of all positions."""
        weights_ST1 = self.residual.weights(sharded.state, depth).unsqueeze(-1)
        return self._gathered(weights_ST1, sharded).squeeze(-1)

    def _sum_gradients(self) -> None:
        """Sum over the group what each backward adds to a parameter, by the hook of a leaf.

        FSDP and PEFT put other tensors in the place of a parameter, so each forward looks.
        """
        modules = [self.residual, *([] if self.output_reader is None else [self.output_reader])]
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            if parameter.requires_grad and parameter not in self._summed:
                parameter.register_hook(partial(_summed, group=self.group))
                self._summed[parameter] = True

    def _gathered(self, own_BTD: Tensor, sharded: ShardedState) -> Tensor:
        if sharded.n_tokens is None:
            return own_BTD
        return gather(own_BTD, sharded.n_tokens, self.group)

    def _own(self, out_BTD: Tensor, sharded: ShardedState, depth: int) -> Tensor:
        if sharded.n_tokens is None:
            return reduce(out_BTD, self.group) if self.outputs == "partial" else out_BTD
        if out_BTD.shape[-2] != sharded.n_tokens:
            raise ValueError(
                f"the output of sublayer {depth} has {out_BTD.shape[-2]} positions, the sequence "
                f"{sharded.n_tokens}"
            )
        cut = reduce_scatter if self.outputs == "partial" else split
        return cut(out_BTD, self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SequenceSharded":
        """A process group cannot be copied; a copied parameter gets its hook when it is used."""
        residual, output_reader = deepcopy((self.residual, self.output_reader), memo)
        return SequenceSharded(residual, self.group, self.outputs, output_reader)


def _summed(gradient: Tensor, group: Group) -> Tensor:
    return total(gradient, group)


def process_group(group: Group | DeviceMesh | None) -> Group:
    """A process group that this process is in; ValueError where there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"a mesh of one dimension is needed, got {group.ndim}: slice it")
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, Group) or dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group")
    return group


def own_positions(n_tokens: int, group: Group | DeviceMesh | None = None) -> range:
    """The positions whose sources this rank holds."""
    start, length, _ = share(n_tokens, process_group(group))
    return range(start, start + length)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients, each counted once: whole ones, and shards (`DTensor`) together."""
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient) for gradient in found]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(whole))
