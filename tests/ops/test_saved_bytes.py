"""What a backward keeps: the sources, which the model holds anyway, and scalars."""

from collections.abc import Callable

import pytest
import torch
from error_budget import random_read
from implementations import KERNELS
from torch import Tensor

from attnres import AttnRes, BlockLayout, depth_attention

N_TOKENS, DIM = 64, 256
FLOAT32_BYTES = 4
SCALARS_A_SOURCE = {"closed_form": 3, "cpu": 2}  # 1 / rms, logit and, in plain PyTorch, the weight
READER_BYTES = 3 * DIM * FLOAT32_BYTES  # query, key weight and their product, whatever the tokens
WIDE_BYTES = N_TOKENS * DIM * 2  # one source in bfloat16

statistics_only = pytest.mark.parametrize("impl", KERNELS)


def _saved_storages(run: Callable[[], object]) -> dict[int, int]:
    """Bytes of every distinct storage that autograd saves while `run` runs, by address."""
    saved: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used twice

    def pack(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return {address: storage.nbytes() for address, storage in saved.items()}


def _bytes_beyond(known: list[Tensor], saved: dict[int, int]) -> int:
    addresses = {x.untyped_storage().data_ptr() for x in known}
    return sum(n_bytes for address, n_bytes in saved.items() if address not in addresses)


def _bytes_of_one_read(impl: str) -> int:
    read = random_read(9, N_TOKENS, DIM, dtype=torch.bfloat16)
    inputs = [x.requires_grad_() for x in (read.query_D, read.key_weight_D, *read.sources)]
    mixes = []
    saved = _saved_storages(
        lambda: mixes.append(depth_attention(inputs[0], inputs[2:], inputs[1], impl=impl))
    )
    return _bytes_beyond(inputs, saved)


@statistics_only
def test_a_read_saves_its_sources_and_a_few_scalars_a_source(impl):
    budget = 9 * N_TOKENS * SCALARS_A_SOURCE[impl] * FLOAT32_BYTES + READER_BYTES
    assert _bytes_of_one_read(impl) <= budget


def test_the_reference_saves_wide_tensors_so_the_budget_can_fail():
    assert _bytes_of_one_read("reference") > 9 * WIDE_BYTES


@statistics_only
def test_a_stack_saves_each_source_once_and_scalars_only(impl):
    """24 sublayers in blocks of 3 read 132 sources: so many times a few scalars a token."""
    residual = AttnRes(DIM, BlockLayout.of(24, sublayers_per_block=3), impl=impl).bfloat16()
    sources: dict[int, Tensor] = {}
    saved = _saved_storages(lambda: _run_stack(residual, sources))
    assert len(sources) == 25
    beyond = _bytes_beyond([*sources.values(), *residual.parameters()], saved)
    scalars = 132 * SCALARS_A_SOURCE[impl] * FLOAT32_BYTES * N_TOKENS
    assert beyond <= scalars + 24 * READER_BYTES
    assert sum(saved.values()) <= 25 * WIDE_BYTES + 48 * DIM * 2 + scalars + 24 * READER_BYTES


def _run_stack(residual: AttnRes, sources: dict[int, Tensor]) -> Tensor:
    """Sublayers that save nothing themselves; every source that is read is noted by address."""
    embed_BTD = torch.randn(1, N_TOKENS, DIM, dtype=torch.bfloat16, requires_grad=True)
    state = residual.start(embed_BTD)
    for depth in range(residual.n_sublayers):
        h_BTD, state = residual.read(state, depth)
        state = residual.write(state, depth, -h_BTD)
        sources |= {x.data_ptr(): x for x in state.sources}
    return residual.finish(state)
