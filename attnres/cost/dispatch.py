"""What PyTorch moves and computes, operation by operation."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

MAKES = ("empty", "empty_like", "new_empty", "empty_strided")  # memory that is not yet written
MOVES = ("cat", "stack", "clone", "copy_", "_to_copy", "constant_pad_nd", "index", "gather",
         "zeros", "ones", "zeros_like", "ones_like", "new_zeros", "fill_", "zero_", "full",
         "full_like", "scalar_tensor", "arange", "eye", "repeat", "select_scatter",
         "index_select")  # fmt: skip  # and compute nothing


class Work(TorchDispatchMode):
    """Counts every operation under it, until it is read; it may be entered many times."""

    def __init__(self):
        super().__init__()
        self.n_numbers = 0  # read and written, each operand once an operation
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.is_view or name in ("detach", *MAKES):
            return out
        read, written = _numbers((args, kwargs)), _numbers(out)
        self.n_numbers += sum(read) + sum(written)
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
        elif name not in MOVES:
            self.flops += max([*read, *written], default=0)
        return out


def _numbers(tree: Any) -> list[int]:
    """Numbers that lie behind each tensor; an expanded one has fewer than its shape says."""
    tensors = {id(x): x for x in tree_leaves(tree) if isinstance(x, Tensor)}
    return [min(x.numel(), _stored(x)) for x in tensors.values()]


def _stored(x: torch.Tensor) -> int:
    return x.untyped_storage().nbytes() // x.element_size()
