"""A class put before a module's own: it does what is added, and the module stays what it is."""

from functools import cache
from typing import Any

from torch import nn
from transformers import PreTrainedModel


class Front(nn.Module):
    """Put before a module's own class; pickle makes the joint class again from the two."""

    is_joint = False  # whether a class was made by `in_front`

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_in_front, type(self).__bases__, self.__dict__


@cache
def in_front(front: type, own: type) -> Any:
    """One class for all layers: FSDP and accelerate choose layers by their class.

    Its module is that of `own`, whose source transformers reads to see what a model supports. A
    whole model has the name of `front`, which its config saves.
    """
    joint = f"{front.__name__}{own.__name__}"
    name = front.__name__ if issubclass(front, PreTrainedModel) else joint
    source = {"__module__": own.__module__, "__qualname__": joint}
    return type(name, (front, own), {**source, "is_joint": True})


def _new_in_front(front: type, own: type) -> Any:
    """An empty module, as pickle fills it."""
    return nn.Module.__new__(in_front(front, own))
