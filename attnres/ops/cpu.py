"""The CPU kernel: `cpu.cpp` called through ctypes, on torch's own OpenMP threads."""

import ctypes
import struct
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.cache import cache_folder
from attnres.ops.cpu_build import library, variants
from attnres.ops.cpu_quick import ALIGNMENT_BYTES, DTYPES, STREAM_BYTES, QuickReads, threads
from attnres.ops.kernel import (
    Given,
    MemoryKernel,
    OtherGradients,
    ReadResult,
    SourceGradients,
    Upstream,
    gradient_like,
)
from attnres.ops.library import define

# `Read` and `Gradients` of cpu.cpp
_READ = struct.Struct("@7qd5Pq")
_GRADIENTS = struct.Struct("@10P")


class CpuKernel(MemoryKernel):
    """See `kernel.Kernel`. Threads are torch's, `torch.get_num_threads()` at most."""

    device_type = "cpu"
    reads_around_streams = True

    def __init__(self, variant: str, file: Path, op_name: str):
        self.variant, self.file = variant, file
        library = ctypes.CDLL(str(file.resolve()))
        self._forward, self._backward = library.attnres_forward, library.attnres_backward
        self.quick = QuickReads(library)
        self._forward.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 4]
        self._backward.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self.op = define(op_name, self, "CPU")

    @property
    def description(self) -> str:
        return f"C++ for {self.variant}, {torch.get_num_threads()} threads at most; {self.file}."

    def forward(
        self,
        folded_QD: Tensor,
        sources: Sequence[Tensor],
        given: Given | None,
        eps: float,
        *,
        centered: bool = False,
    ) -> ReadResult:
        """As `Kernel`; where `centered`, sources weigh S * alpha - 1 and what is given weighs 1."""
        first, n_queries, n_sources = sources[0], folded_QD.shape[0], len(sources)
        tokens = first.shape[:-1]
        mix_QD = first.new_empty((n_queries, *first.shape))
        lse_Q = folded_QD.new_empty((n_queries, *tokens))
        rstd = folded_QD.new_empty((*tokens, n_sources))
        logits = folded_QD.new_empty((n_queries, *tokens, n_sources))
        # one mix is read at once, many are not
        stream = n_queries > 1 and _worth_streaming([_rows(mix_QD)])
        call = _Call(folded_QD, sources, given, centered)
        outputs = (mix_QD.data_ptr(), lse_Q.data_ptr(), rstd.data_ptr(), logits.data_ptr())
        self._run(self._forward, call.read(eps, stream), *outputs)
        return ReadResult(mix_QD, lse_Q, (rstd, logits))

    def backward(
        self,
        upstream: Upstream,
        folded_QD: Tensor,
        sources: Sequence[Tensor],
        given: Given | None,
        saved: Sequence[Tensor],
        into: SourceGradients,
        needs_folded: bool,
        *,
        centered: bool = False,
    ) -> OtherGradients:
        grad_folded_QD = torch.empty_like(folded_QD) if needs_folded else None
        grad_mix_QD = gradient_like(given.mix_QD) if given else None
        grad_lse_Q = gradient_like(given.lse_Q) if given else None
        call = _Call(folded_QD, sources, given, centered)
        buffers = [None if x is None else _rows(x) for x in into.buffers]
        written = [b for b, added in zip(buffers, into.accumulate, strict=True) if b and not added]
        gradients = _GRADIENTS.pack(
            call.pointers([_contiguous(e) for e in upstream.mixes]),
            call.pointer(_contiguous(upstream.lse_Q)),
            call.pointer(saved[0].contiguous()),
            call.pointer(saved[1].contiguous()),
            call.pointers([b and b.tensor for b in buffers]),
            call.numbers("q", [b.stride if b else 0 for b in buffers]),
            call.numbers("B", into.accumulate),
            call.pointer(grad_folded_QD),
            call.pointer(grad_mix_QD),
            call.pointer(grad_lse_Q),
        )
        self._run(self._backward, call.read(0.0, _worth_streaming(written)), gradients)
        for x, buffer in zip(into.buffers, buffers, strict=True):
            if buffer and x is not None and buffer.is_copy:
                x.copy_(buffer.tensor.view(x.shape))
        return OtherGradients(grad_folded_QD, grad_mix_QD, grad_lse_Q)

    @staticmethod
    def _run(function: Any, read: bytes, *arguments: Any) -> None:
        status = function(read, *arguments)
        assert status == 0, "the kernel and this file disagree on the dtypes"


class _Call:
    """The inputs of a read as the kernel takes them, kept alive as long as this is."""

    def __init__(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, centered: bool
    ):
        self._alive: list[Any] = []
        rows = [_rows(source) for source in sources]
        shape = sources[0].shape
        self._shape = (shape[:-1].numel(), shape[-1], len(sources), folded_QD.shape[0])
        self._dtype = DTYPES[sources[0].dtype]
        self._inputs = (
            self.pointer(folded_QD.contiguous()),
            self.pointers([r.tensor for r in rows]),
            self.numbers("q", [r.stride for r in rows]),
            self.pointer(given and given.mix_QD.contiguous()),
            self.pointer(given and given.lse_Q.contiguous()),
            centered,
        )

    def read(self, eps: float, stream: bool) -> bytes:
        n_rows, dim, n_sources, _ = self._shape
        n_threads = threads(n_rows, dim, n_sources)
        return _READ.pack(self._dtype, *self._shape, n_threads, stream, eps, *self._inputs)

    def pointer(self, x: Tensor | None) -> int:
        if x is None:
            return 0
        self._alive.append(x)
        return x.data_ptr()

    def pointers(self, tensors: Sequence[Tensor | None]) -> int:
        return self.numbers("q", [self.pointer(x) for x in tensors])

    def numbers(self, kind: str, numbers: Sequence[int]) -> int:
        row = array(kind, numbers)
        self._alive.append(row)
        return row.buffer_info()[0]


class _Rows(NamedTuple):
    """Rows of numbers side by side, one at each multiple of the stride."""

    tensor: Tensor
    stride: int  # in numbers
    is_copy: bool


def _rows(x: Tensor) -> _Rows:
    """Of the tensor's own memory where its strides allow, else of a copy."""
    dim = x.shape[-1]
    if x.is_contiguous():
        return _Rows(x, dim, is_copy=False)
    if x.stride(-1) == 1 or dim == 1:
        try:
            return _Rows(x, x.view(-1, dim).stride(0), is_copy=False)
        except RuntimeError:  # no single stride leads from row to row
            pass
    return _Rows(x.contiguous(), dim, is_copy=True)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _worth_streaming(outputs: Sequence[_Rows]) -> bool:
    """Large enough to be gone from the caches before they are read, and aligned."""
    n_bytes = sum(x.tensor.nbytes for x in outputs)
    return n_bytes >= STREAM_BYTES and all(
        address % ALIGNMENT_BYTES == 0
        for x in outputs
        for address in (x.tensor.data_ptr(), x.stride * x.tensor.itemsize)
    )


@cache  # its op is defined once
def kernel() -> CpuKernel:
    """The widest variant that this processor runs, compiled now if it was not before.

    Raises:
        RuntimeError or OSError: there is no compiler, it failed, or the library does not load.
    """
    variant = variants()[0]
    return CpuKernel(variant, library(variant, cache_folder()), "cpu_read")
