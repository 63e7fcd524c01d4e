"""Sources that stand in one tensor, used as if they were a list."""

from collections.abc import Sequence

from torch import Tensor

from attnres.ops.precision import result_dtype


class Stack(Sequence[Tensor]):
    """Views of one tensor along `dim`: 0 for [S, ..., D], 1 for a token-major bank [T, S, D]."""

    def __init__(self, tensor: Tensor, dim: int):
        self.tensor = tensor
        self.dim = dim
        self._views = tensor.unbind(dim)

    def __getitem__(self, i):
        return self._views[i]

    def __len__(self) -> int:
        return len(self._views)


def tensors_of(sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Those that own the memory: one where the sources are views of it."""
    return [sources.tensor] if isinstance(sources, Stack) else sources


def of_one_dtype(sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """The sources in the widest of their dtypes: a kernel reads one dtype."""
    if isinstance(sources, Stack):
        return sources
    dtype = result_dtype(sources)
    if all(source.dtype == dtype for source in sources):
        return sources
    return [source.to(dtype) for source in sources]
