"""The CPU kernel: `cpu.cpp` called through ctypes, on torch's own OpenMP threads."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.cache import cache_folder
from attnres.ops.cpu_build import library, variants
from attnres.ops.kernel import (
    Given,
    MemoryKernel,
    OtherGradients,
    ReadResult,
    SourceGradients,
    Upstream,
)
from attnres.ops.library import define

CONTIGUOUS = torch.contiguous_format
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
NUMBERS_A_THREAD = 1 << 14  # of the sources: fewer are not worth waking a thread
STREAM_BYTES = 1 << 24  # outputs as large are not in cache when they are read next
ALIGNMENT_BYTES = 64  # of a row that is written past the caches


class _Read(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("dtype", "n_rows", "dim", "n_sources")),
        *((name, ctypes.c_int64) for name in ("n_queries", "n_threads", "stream")),
        ("eps", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("folded", "sources", "source_strides")),
        *((name, ctypes.c_void_p) for name in ("given_mix", "given_lse")),
    ]


class _Gradients(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("grad_mixes", "grad_lse", "rstd", "logits")),
        *((name, ctypes.c_void_p) for name in ("buffers", "buffer_strides", "accumulate")),
        *((name, ctypes.c_void_p) for name in ("folded", "given_mix", "given_lse")),
    ]


class CpuKernel(MemoryKernel):
    """See `kernel.Kernel`. Threads are torch's, `torch.get_num_threads()` at most."""

    def __init__(self, variant: str, file: Path, op_name: str):
        self.variant, self.file = variant, file
        self._library = ctypes.CDLL(str(file))
        self.op = define(op_name, self, "CPU")

    @property
    def description(self) -> str:
        return f"C++ for {self.variant}, {torch.get_num_threads()} threads at most; {self.file}."

    def takes(self, x: Tensor) -> bool:
        return type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()

    def forward(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
    ) -> ReadResult:
        first, n_queries, n_sources = sources[0], folded_QD.shape[0], len(sources)
        tokens = first.shape[:-1]
        mix_QD = first.new_empty((n_queries, *first.shape))
        lse_Q = folded_QD.new_empty((n_queries, *tokens))
        rstd = folded_QD.new_empty((*tokens, n_sources))
        logits = folded_QD.new_empty((n_queries, *tokens, n_sources))
        call = _Call(folded_QD, sources, given, eps)
        # one mix is read at once, many are not
        call.read.stream = n_queries > 1 and _worth_streaming([_rows(mix_QD)])
        outputs = (mix_QD.data_ptr(), lse_Q.data_ptr(), rstd.data_ptr(), logits.data_ptr())
        self._run(self._library.attnres_forward, call.read, *map(ctypes.c_void_p, outputs))
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
    ) -> OtherGradients:
        grad_folded_QD = torch.empty_like(folded_QD) if needs_folded else None
        grad_mix_QD = torch.empty_like(given.mix_QD, memory_format=CONTIGUOUS) if given else None
        grad_lse_Q = torch.empty_like(given.lse_Q, memory_format=CONTIGUOUS) if given else None
        call = _Call(folded_QD, sources, given, 0.0)
        buffers = [None if x is None else _rows(x) for x in into.buffers]
        written = [b for b, added in zip(buffers, into.accumulate, strict=True) if b and not added]
        call.read.stream = _worth_streaming(written)
        gradients = _Gradients(
            grad_mixes=call.pointers([_contiguous(e) for e in upstream.mixes]),
            grad_lse=call.pointer(_contiguous(upstream.lse_Q)),
            rstd=call.pointer(saved[0].contiguous()),
            logits=call.pointer(saved[1].contiguous()),
            buffers=call.pointers([b and b.tensor for b in buffers]),
            buffer_strides=call.numbers(ctypes.c_int64, [b.stride if b else 0 for b in buffers]),
            accumulate=call.numbers(ctypes.c_uint8, into.accumulate),
            folded=call.pointer(grad_folded_QD),
            given_mix=call.pointer(grad_mix_QD),
            given_lse=call.pointer(grad_lse_Q),
        )
        self._run(self._library.attnres_backward, call.read, ctypes.byref(gradients))
        for x, buffer in zip(into.buffers, buffers, strict=True):
            if buffer and x is not None and buffer.is_copy:
                x.copy_(buffer.tensor.view(x.shape))
        return OtherGradients(grad_folded_QD, grad_mix_QD, grad_lse_Q)

    def _run(self, function: Any, read: _Read, *arguments: Any) -> None:
        status = function(ctypes.byref(read), *arguments)
        assert status == 0, f"the CPU kernel does not know dtype {read.dtype}"


class _Call:
    """The inputs of a read as the kernel takes them, kept alive as long as this is."""

    def __init__(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
    ):
        self._alive: list[Any] = []
        rows = [_rows(source) for source in sources]
        n_rows, dim = sources[0].shape[:-1].numel(), sources[0].shape[-1]
        n_threads = n_rows * dim * len(sources) // NUMBERS_A_THREAD
        self.read = _Read(
            dtype=DTYPES[sources[0].dtype],
            n_rows=n_rows,
            dim=dim,
            n_sources=len(sources),
            n_queries=folded_QD.shape[0],
            n_threads=max(1, min(n_threads, n_rows, torch.get_num_threads())),
            eps=eps,
            folded=self.pointer(folded_QD.contiguous()),
            sources=self.pointers([r.tensor for r in rows]),
            source_strides=self.numbers(ctypes.c_int64, [r.stride for r in rows]),
            given_mix=self.pointer(given and given.mix_QD.contiguous()),
            given_lse=self.pointer(given and given.lse_Q.contiguous()),
        )

    def pointer(self, x: Tensor | None) -> int | None:
        if x is None:
            return None
        self._alive.append(x)
        return x.data_ptr()

    def pointers(self, tensors: Sequence[Tensor | None]) -> int:
        return self.numbers(ctypes.c_void_p, [self.pointer(x) for x in tensors])

    def numbers(self, kind: Any, numbers: Sequence[Any]) -> int:
        array = (kind * len(numbers))(*numbers)
        self._alive.append(array)
        return ctypes.addressof(array)


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


def kernel() -> CpuKernel:
    """The widest variant that this processor runs, compiled now if it was not before.

    Raises:
        RuntimeError or OSError: there is no compiler, it failed, or the library does not load.
    """
    variant = variants()[0]
    return CpuKernel(variant, library(variant, cache_folder()), "cpu_read")
