"""Bytes that autograd keeps for the backward of one read, beyond its inputs."""

from typing import Any

import torch
from contestants import Contestant, random_inputs
from torch import Tensor


def saved_bytes(
    contestant: Contestant, dtype: torch.dtype, shape: tuple[int, int, int]
) -> dict[str, Any]:
    """A row: all of it, a token's share, and in units of one source; rows, width, sources."""
    n_rows, dim, n_sources = shape
    inputs = contestant.takes(random_inputs(n_rows, dim, n_sources, dtype))
    leaves = {name: x.requires_grad_() for name, x in inputs.items()}
    run = contestant.prepare(leaves)
    run()  # compiles, where it does
    saved: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address comes twice

    def pack(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        mix_BTD = run()
    own = {x.untyped_storage().data_ptr() for x in leaves.values()}
    n_bytes = sum(storage.nbytes() for address, storage in saved.items() if address not in own)
    del mix_BTD
    return {
        "who": contestant.name,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "n_bytes": n_bytes,
        "bytes_a_token": n_bytes / n_rows,
        "in_sources": n_bytes / (n_rows * dim * dtype.itemsize),
    }
