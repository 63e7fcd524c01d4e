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
        module: that has the parameters; FSDP may put others in their place.
        names: of those that are shared, by the ranks that hold them.
        group: of the whole pipeline.
    """

    def __init__(
        self, module: nn.Module, names: Mapping[tuple[int, ...], Sequence[str]], group: Any
    ):
        self._module = module
        self._held = [(_group_of(ranks, group), shared) for ranks, shared in names.items()]
        self._before: dict[str, Tensor | None] = {}

    @property
    def groups(self) -> list[Any]:
        """Of those ranks that share something."""
        return [group for group, _ in self._held]

    def set_aside(self) -> None:
        """What earlier passes gave is summed already."""
        for _, held in self._trained():
            for name, parameter in held.items():
                self._before[name], parameter.grad = parameter.grad, None

    def add_up(self) -> None:
        """Sum the gradients of this pass over ranks, and add those of earlier ones."""
        for group, held in self._trained():
            gradients = {name: _gradient(parameter) for name, parameter in held.items()}
            _all_reduce([_local(gradient) for gradient in gradients.values()], group)
            for name, gradient in gradients.items():
                earlier = self._before.pop(name)
                held[name].grad = gradient if earlier is None else earlier.add_(gradient)

    def _trained(self) -> list[tuple[Any, dict[str, nn.Parameter]]]:
        """What has gradients, by group and name."""
        found = dict(self._module.named_parameters())
        trained = [
            (group, {name: found[name] for name in names if found[name].requires_grad})
            for group, names in self._held
        ]
        return [(group, held) for group, held in trained if held]


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _group_of(ranks: Sequence[int], group: Any) -> Any:
    if len(ranks) == dist.get_world_size(group):
        return group
    members = [dist.get_global_rank(group, rank) for rank in ranks]
    timeout = group._get_backend(group._device_types[0]).options._timeout  # else half an hour
    return dist.new_group(members, timeout=timeout, use_local_synchronization=True)


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
