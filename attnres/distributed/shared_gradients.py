"""Parameters that several ranks of a pipeline hold, as an embedding that is tied to the head.

All copies start equal, and each gets the sum of their gradients, so they stay equal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class SharedGradients:
    """Adds up what the passes of a step give.

    Args:
        module: that has the parameters.
        names: of those that are shared, by the ranks that hold them.
        group: of the whole pipeline.
    """

    def __init__(
        self, module: nn.Module, names: Mapping[tuple[int, ...], Sequence[str]], group: Any
    ):
        by_name = dict(module.named_parameters())
        self._held: list[tuple[Any, list[nn.Parameter]]] = []
        for ranks, shared in names.items():
            trained = [by_name[name] for name in shared if by_name[name].requires_grad]
            if trained:
                self._held.append((_group_of(ranks, group), trained))
        self._before: list[Tensor | None] = []

    def set_aside(self) -> None:
        """What earlier passes gave is summed already."""
        self._before = [parameter.grad for _, held in self._held for parameter in held]
        for _, held in self._held:
            for parameter in held:
                parameter.grad = None

    def add_up(self) -> None:
        """Sum the gradients of this pass over ranks, and add those of earlier ones."""
        before = iter(self._before)
        for group, held in self._held:
            for parameter in held:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            _all_reduce([_local(parameter.grad) for parameter in held], group)
            for parameter in held:
                earlier = next(before)
                if earlier is not None:
                    parameter.grad = earlier.add_(parameter.grad)
        self._before = []


def _group_of(ranks: Sequence[int], group: Any) -> Any:
    if len(ranks) == dist.get_world_size(group):
        return group
    members = [dist.get_global_rank(group, rank) for rank in ranks]
    return dist.new_group(members, use_local_synchronization=True)


def _all_reduce(tensors: Sequence[Tensor], group: Any) -> None:
    """Sum each over ranks, in place, by one message."""
    if len(tensors) == 1:
        dist.all_reduce(tensors[0], group=group)
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    sums = flat.split([tensor.numel() for tensor in tensors])
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total.view(tensor.shape))


def _local(tensor: Any) -> Tensor:
    """This rank's part of what FSDP shards."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
