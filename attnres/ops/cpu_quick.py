"""The CPU kernel's read without gradients: one call, and no tensor but what it gives.

With one token to read, Python's own time is most of a read. Query and key weight are folded in the
call, from where they lie: nothing is kept that a changed weight could leave behind.
"""

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.ops.kernel import PLAIN
from attnres.ops.plain_norm import PlainNorm

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
ARITHMETIC = {dtype: torch.promote_types(dtype, torch.float32) for dtype in DTYPES}
NUMBERS_A_THREAD = 1 << 14  # of the sources: fewer are not worth waking a thread
STREAM_BYTES = 1 << 24  # outputs as large are not in cache when they are read next
ALIGNMENT_BYTES = 64  # of a row that is written past the caches

_QUICK_READ = struct.Struct("@7qd5P2q8Pd")  # `QuickRead` of cpu_interface.h
_POINTER_BYTES = 8


class Asked(NamedTuple):
    """What phase 1 found for one of its queries."""

    mix_D: Tensor
    lse_Q: Tensor  # of all its queries, [Q, ...]
    query: int


class Found(NamedTuple):
    """What a quick read gives."""

    total_D: Tensor | None  # the sum of the terms
    mixes: list[Tensor]  # one a query, each [..., D]
    lse_Q: Tensor | None  # [Q, ...], where it was asked for


class QuickReads:
    """Reads of contiguous memory of two dtypes at most, by a library of `cpu.cpp`."""

    def __init__(self, library: ctypes.CDLL):
        self._read: Any = library.attnres_quick
        self._read.argtypes = [ctypes.c_char_p]

    def read(
        self,
        queries: list[Tensor],
        key_weights: list[Tensor],
        rows: list[Tensor],
        eps: float,
        has_terms: bool = False,
        asked: Asked | None = None,
        around_D: Tensor | None = None,
        wants_lse: bool = False,
        norm: PlainNorm | None = None,
    ) -> Found | None:
        """The mixes of the sources for each query; None where memory is not as it should be.

        Args:
            queries, key_weights: [D] each.
            rows: sources [..., D] of one shape.
            has_terms: the last two of them are terms, and their sum is the last source.
            asked: where there is one query, what it goes on from.
            around_D: a sum of all sources, around which one query reads (`centered_attention`).
            wants_lse: whether to give the logarithm of the sum under each softmax.
            norm: of the dtype of the rows; what the mix of one query goes through.
        """
        given = asked.mix_D if asked is not None else around_D
        first, wide = rows[0], queries[0].dtype
        dtype, n_numbers = first.dtype, first.numel()
        code = DTYPES.get(dtype)
        if code is None or n_numbers == 0 or wide not in (dtype, ARITHMETIC[dtype]):
            return None
        dim = first.size(-1)
        for vectors in (queries, key_weights):
            if not _are_plain(vectors, wide, dim):
                return None
        if not _are_plain(rows if given is None else [*rows, given], dtype, n_numbers):
            return None
        n_rows, n_queries, n_sources = n_numbers // dim, len(queries), len(rows) - has_terms
        lse_address = 0
        if asked is not None:
            lse_Q = asked.lse_Q
            if not _are_plain([lse_Q], ARITHMETIC[dtype], lse_Q.size(0) * n_rows):
                return None
            lse_address = lse_Q.data_ptr() + asked.query * n_rows * lse_Q.itemsize
        mixes = [torch.empty_like(first) for _ in queries]
        total_D = lse_QR = None
        terms: tuple[int, ...] = (0, 0, 0)
        sources = rows
        if has_terms:
            total_D = torch.empty_like(first)
            terms = (rows[-2].data_ptr(), rows[-1].data_ptr(), total_D.data_ptr())
            sources = [*rows[:-2], total_D]
        if wants_lse:
            lse_QR = torch.empty((n_queries, *first.shape[:-1]), dtype=ARITHMETIC[dtype])
        tensors = (*queries, *key_weights, *mixes, *sources)
        addresses = array("q", [x.data_ptr() for x in tensors])
        at, step = addresses.buffer_info()[0], n_queries * _POINTER_BYTES
        packed = _QUICK_READ.pack(
            code,
            n_rows,
            dim,
            n_sources,
            n_queries,
            threads(n_rows, dim, n_sources),
            n_queries > 1 and _are_streamed(mixes),
            eps,
            0,
            at + 3 * step,
            0,
            0 if given is None else given.data_ptr(),
            lse_address,
            around_D is not None,
            wide is not dtype,
            at,
            at + step,
            at + 2 * step,
            0 if lse_QR is None else lse_QR.data_ptr(),
            *terms,
            0 if norm is None else norm.weight_D.data_ptr(),
            0.0 if norm is None else norm.eps,
        )
        status = self._read(packed)
        assert status == 0, "the kernel and this file disagree on the dtypes"
        return Found(total_D, mixes, lse_QR)


def _are_plain(tensors: Sequence[Tensor], dtype: torch.dtype, n_numbers: int) -> bool:
    """Whether each is so many numbers of one dtype side by side in this machine's memory."""
    for x in tensors:
        if (
            type(x) not in PLAIN
            or x.dtype is not dtype
            or x.numel() != n_numbers
            or not x.is_cpu
            or not x.is_contiguous()
        ):
            return False
    return True


def _are_streamed(mixes: Sequence[Tensor]) -> bool:
    """Large enough to be gone from the caches before they are read, and aligned."""
    first = mixes[0]
    return (
        first.nbytes * len(mixes) >= STREAM_BYTES
        and first.size(-1) * first.itemsize % ALIGNMENT_BYTES == 0
        and all(x.data_ptr() % ALIGNMENT_BYTES == 0 for x in mixes)
    )


def threads(n_rows: int, dim: int, n_sources: int) -> int:
    """How many are worth waking."""
    enough = min(n_rows * dim * n_sources // NUMBERS_A_THREAD, n_rows)
    return 1 if enough < 2 else min(enough, torch.get_num_threads())
