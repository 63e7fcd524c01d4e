"""A read without gradients on the short way: in decoding, Python's own time is most of a read."""

import math
import os
from typing import Any

import torch
from torch import Tensor

from attnres.ops.backends import CHOICE, loaded
from attnres.ops.cpu import CpuKernel
from attnres.ops.kernel import is_watched


def mix(query_D: Any, sources: Any, key_weight_D: Any, eps: Any, impl: str | None) -> Tensor | None:
    """`depth_attention` of plain tensors; None where the long way must be gone.

    That way checks what was given and says what is wrong, so nothing is refused here.
    """
    if torch.compiler.is_compiling() or is_watched():
        return None
    kernel = getattr(loaded.get("cpu"), "kernel", None)
    chosen = impl == "cpu" or (impl is None and CHOICE not in os.environ)
    if not isinstance(kernel, CpuKernel) or not chosen:
        return None
    if type(sources) not in (list, tuple) or not sources:
        return None
    if type(eps) is not float or not 0 <= eps < math.inf:
        return None
    return kernel.mix(query_D, sources, key_weight_D, eps)
