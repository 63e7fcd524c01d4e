"""What the public ops refuse: one line that says what was given."""

import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from attnres.ops.sources import Stack


def as_sources(sources: Sequence[Tensor] | Tensor, source_dim: int = 0) -> Sequence[Tensor]:
    """The sources of a list, or of one tensor, as a sequence that fits together."""
    if isinstance(sources, Tensor):
        sources = _stack(sources, source_dim)
    elif not isinstance(sources, list | tuple):
        kind = type(sources).__name__
        raise ValueError(f"sources must be a tensor, or a list or tuple of tensors, got a {kind}")
    if len(sources) == 0:
        raise ValueError("depth attention needs at least one source, got none")
    first = sources[0]
    for i, source in enumerate(sources):
        if not isinstance(source, Tensor):
            raise ValueError(f"source {i} must be a tensor, got a {type(source).__name__}")
        if (
            source.shape != first.shape
            or source.device != first.device
            or source.layout is not torch.strided
            or not _is_wide_enough(source.dtype)
        ):
            _refuse(i, source, first)
    if first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"a source must have shape [..., D] with D > 0, got {list(first.shape)}")
    return sources


def check_parameter(name: str, parameter: Tensor, source: Tensor, n_queries: int | None) -> None:
    """ValueError for a query or key weight that is not [D], or [Q, D] where there are queries."""
    if not isinstance(parameter, Tensor):
        raise ValueError(f"{name} must be a tensor, got a {type(parameter).__name__}")
    dim = source.shape[-1]
    shape = (dim,) if n_queries is None else (n_queries, dim)
    if parameter.shape != shape:
        raise ValueError(
            f"{name} must have shape {list(shape)}, with the width of the sources, "
            f"got {list(parameter.shape)}"
        )
    _check_number_and_device(name, parameter, source)


def check_mix(mix_D: Tensor, lse: Tensor, source: Tensor) -> None:
    """ValueError for what cannot be merged with a source."""
    for name, x, shape in (("mix_D", mix_D, source.shape), ("lse", lse, source.shape[:-1])):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {x!r}")
        if x.shape != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}")
        _check_number_and_device(name, x, source)


def check_stream(stream_D: Tensor, source: Tensor) -> None:
    """ValueError for a sum of sources that no source could be a part of."""
    if not isinstance(stream_D, Tensor):
        raise ValueError(f"stream_D must be a tensor, got {stream_D!r}")
    if stream_D.shape != source.shape:
        shapes = f"{list(source.shape)}, the shape of the sources, got {list(stream_D.shape)}"
        raise ValueError(f"stream_D must have shape {shapes}")
    _check_number_and_device("stream_D", stream_D, source)


def check_eps(eps: float) -> None:
    """ValueError for an epsilon that is negative or no finite number."""
    is_number = isinstance(eps, int | float) and not isinstance(eps, bool)
    if not is_number or not 0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps!r}")


def check_finite(name: str, value: object) -> None:
    """ValueError with the value where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def _stack(tensor: Tensor, source_dim: int) -> Stack:
    n_axes = tensor.dim()
    if (
        not isinstance(source_dim, int)
        or isinstance(source_dim, bool)
        or n_axes < 2
        or not -n_axes <= source_dim < n_axes
        or source_dim % n_axes == n_axes - 1
    ):
        raise ValueError(
            f"source_dim must be an axis before the last of {list(tensor.shape)}, got {source_dim}"
        )
    return Stack(tensor, source_dim)


def _refuse(i: int, source: Tensor, first: Tensor) -> NoReturn:
    if not _is_wide_enough(source.dtype):
        raise ValueError(f"source {i} must be floating point, 16 bits or more, got {source.dtype}")
    if source.layout is not torch.strided:
        raise ValueError(f"source {i} must be a dense tensor, got one of layout {source.layout}")
    if source.shape != first.shape:
        raise ValueError(
            f"sources must have one shape: source {i} has {list(source.shape)}, "
            f"source 0 has {list(first.shape)}"
        )
    raise ValueError(
        f"sources must be on one device: source {i} is on {source.device}, "
        f"source 0 on {first.device}"
    )


def _check_number_and_device(name: str, x: Tensor, source: Tensor) -> None:
    if not _is_wide_enough(x.dtype):
        raise ValueError(f"{name} must be floating point, 16 bits or more, got {x.dtype}")
    if x.device != source.device:
        raise ValueError(f"{name} is on {x.device}, the sources on {source.device}")


def _is_wide_enough(dtype: torch.dtype) -> bool:
    """Types of 8 bits are for storage: torch has no arithmetic for them."""
    return dtype.is_floating_point and dtype.itemsize > 1
