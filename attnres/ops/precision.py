"""In which dtype depth attention computes, and in which it answers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """As `torch.compiler.assume_constant_result`, which would import the whole compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  read by the compiler
    return function


@constant  # the compiler of torch 2.11 cannot look into it
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def result_dtype(sources: Sequence[Tensor]) -> torch.dtype:
    """The widest dtype among the sources: that of the mix."""
    dtype = sources[0].dtype
    for source in sources[1:]:
        if source.dtype != dtype:
            dtype = torch.promote_types(dtype, source.dtype)
    return dtype


def compute_dtype(sources: Sequence[Tensor]) -> torch.dtype:
    """float32, or float64 for float64 sources, so that the reference is its own oracle."""
    return torch.promote_types(result_dtype(sources), torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keeps the arithmetic in `compute_dtype`; the meta device has no autocast to switch off."""
    if not _has_autocast(device.type) or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
