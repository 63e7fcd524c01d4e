"""Depth attention on a GPU: a `Kernel` (see kernel.py) that launches Triton programs.

Also runs on CPU tensors, for tests, in a process that started with TRITON_INTERPRET=1.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnres.ops.kernel import (
    Given,
    MemoryKernel,
    OtherGradients,
    ReadResult,
    SourceGradients,
    Upstream,
)
from attnres.ops.library import define
from attnres.ops.triton_backward import backward_tiles
from attnres.ops.triton_forward import forward_online, forward_sweeps
from attnres.ops.triton_table import WORDS, fill_table

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
INTERPRETED = not isinstance(fill_table, triton.JITFunction)
MAX_QUERIES = 32  # every query has registers of its own
UNROLL = 2  # loads of a lone query's products that are under way together
MAX_ONLINE_DIM = 16384  # a program of 16 warps keeps so wide a mix and a source in registers


class Tile(NamedTuple):
    """Tokens and columns that a program works on at once, and its warps."""

    rows: int
    columns: int
    warps: int


def forward(
    folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
) -> ReadResult:
    first, n_queries, n_sources = sources[0], len(folded_QD), len(sources)
    _check(first, n_queries)
    lead, dim = first.shape[:-1], first.shape[-1]
    mix_QD = first.new_empty(n_queries, *first.shape)
    lse_Q = folded_QD.new_empty(n_queries, *lead)
    rstd_S = folded_QD.new_empty(*lead, n_sources)
    logits_QS = folded_QD.new_empty(n_queries, *lead, n_sources)
    n_rows = lead.numel()
    if n_rows > 0:
        tensors = [_as_rows(source) for source in sources]
        align = _alignment(tensors)
        inputs = (folded_QD.contiguous(), *_contiguous(given))
        outputs = (mix_QD, lse_Q, rstd_S, logits_QS)
        with _on(first.device):
            table = _table(_places(tensors, align), first.device)
            arguments = (table, *inputs, *outputs, n_rows, n_sources, eps)
            online = n_queries == 1 and dim <= MAX_ONLINE_DIM
            tile = (
                online_tile(n_rows, dim)
                if online
                else sweep_tile(n_rows, dim, n_queries, n_sources)
            )
            sizes = {} if online else _sizes(n_queries, n_sources, align)
            kernel = forward_online if online else forward_sweeps
            arguments += () if online else (dim,)
            n_programs = triton.cdiv(n_rows, tile.rows)
            _launch(kernel, n_programs, *arguments, **_options(first, tile, align, given), **sizes)
    return ReadResult(mix_QD, lse_Q, (rstd_S, logits_QS))


def backward(
    upstream: Upstream,
    folded_QD: Tensor,
    sources: Sequence[Tensor],
    given: Given | None,
    saved: Sequence[Tensor],
    into: SourceGradients,
    needs_folded: bool,
) -> OtherGradients:
    first, n_queries, n_sources = sources[0], len(folded_QD), len(sources)
    _check(first, n_queries)
    dim, n_rows = first.shape[-1], first.shape[:-1].numel()
    mix_QD, lse_Q = (
        (None, None)
        if given is None
        else tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in given)
    )
    tile = sweep_tile(n_rows, dim, n_queries, n_sources)
    n_programs = min(triton.cdiv(n_rows, tile.rows), _max_programs(first.device, n_queries))
    part_QD = folded_QD.new_zeros(n_programs, *folded_QD.shape) if needs_folded else None
    if n_rows > 0:
        values = [_as_rows(source) for source in sources]
        mixes = [None if e_D is None else _as_rows(e_D.to(first.dtype)) for e_D in upstream.mixes]
        buffers = [None if buffer_D is None else _as_rows(buffer_D) for buffer_D in into.buffers]
        lse_gradient_Q = None if upstream.lse_Q is None else upstream.lse_Q.contiguous()
        scratch = folded_QD.new_empty(
            n_programs, tile.rows, (2 * n_queries + 1) * n_sources + n_queries
        )
        tensors = [*values, *mixes, *buffers]
        align = _alignment(tensors)
        with _on(first.device):
            table = _table([*_places(tensors, align), *map(int, into.accumulate)], first.device)
            _launch(
                backward_tiles,
                n_programs,
                *(table, folded_QD.contiguous(), *_contiguous(given), *saved, lse_gradient_Q),
                *(scratch, part_QD, mix_QD, lse_Q, n_rows, n_sources),
                **_options(first, tile, align, given),
                **_sizes(n_queries, n_sources, align),
                HAS_LSE_GRADIENT=lse_gradient_Q is not None,
                NEEDS_FOLDED=needs_folded,
            )
        _copy_back(buffers, into.buffers)
    return OtherGradients(None if part_QD is None else part_QD.sum(dim=0), mix_QD, lse_Q)


def online_tile(n_rows: int, dim: int, interpreted: bool = INTERPRETED) -> Tile:
    """Whole rows, 32 columns a thread."""
    columns = triton.next_power_of_2(dim)
    if interpreted:
        return _few_programs(n_rows, columns)
    rows = max(1, min(512 // columns, 64))
    return Tile(rows, columns, max(1, rows * columns // 1024))


def sweep_tile(
    n_rows: int, dim: int, n_queries: int, n_sources: int, interpreted: bool = INTERPRETED
) -> Tile:
    """A warp a row where rows suffice; fewer columns a thread where there are more queries."""
    columns = triton.next_power_of_2(dim)
    if interpreted:
        return _few_programs(n_rows, min(columns, 1024))
    registers = (
        64 if dim % 16 == 0 else 32
    )  # of a thread for all queries; rows at odd places need more
    per_thread = max(1, min(8, registers // triton.next_power_of_2(n_queries)))
    columns = min(columns, 32 * per_thread)
    rows = min(
        64,
        128 * per_thread // columns,
        1024 // triton.next_power_of_2(n_sources),
        triton.next_power_of_2(triton.cdiv(n_rows, 128)),
    )
    return Tile(max(1, rows), columns, max(1, min(4, rows * columns // (32 * per_thread))))


def _few_programs(n_rows: int, columns: int) -> Tile:
    """The interpreter takes its time by the program, whatever the size."""
    return Tile(min(64, triton.next_power_of_2(max(1, n_rows))), columns, 1)


def _check(first: Tensor, n_queries: int) -> None:
    if first.dtype not in DTYPES:
        raise ValueError(
            f"the Triton kernel reads float32, bfloat16 and float16, the sources are {first.dtype}"
        )
    if n_queries > MAX_QUERIES:
        raise ValueError(
            f"the Triton kernel takes at most {MAX_QUERIES} queries at once, got {n_queries}"
        )
    if first.device.type == "cpu" and not INTERPRETED:
        raise ValueError(
            "the Triton kernel needs CUDA tensors, or TRITON_INTERPRET=1 in the environment before "
            "triton is imported; the sources are on cpu"
        )
    if first.device.type != ("cpu" if INTERPRETED else "cuda"):
        where = "CPU tensors under TRITON_INTERPRET=1" if INTERPRETED else "CUDA tensors"
        raise ValueError(f"the Triton kernel needs {where}; the sources are on {first.device}")


def _as_rows(tensor: Tensor) -> Tensor:
    """[R, D] with any row stride; a copy only where no view has that form."""
    dim, n_rows = tensor.shape[-1], tensor.shape[:-1].numel()
    if dim > 1 and tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    try:
        return tensor.view(n_rows, dim)
    except RuntimeError:  # leading axes that no single stride steps through
        return tensor.contiguous().view(n_rows, dim)


def _copy_back(rows: Sequence[Tensor | None], buffers: Sequence[Tensor | None]) -> None:
    """To a buffer that has no view as rows goes what its copy was given."""
    for rows_RD, buffer_D in zip(rows, buffers, strict=True):
        if rows_RD is None or buffer_D is None or rows_RD.data_ptr() == buffer_D.data_ptr():
            continue
        buffer_D.copy_(rows_RD.view(buffer_D.shape))


def _contiguous(given: Given | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if given is None else (given.mix_QD.contiguous(), given.lse_Q.contiguous())


def _alignment(tensors: Sequence[Tensor | None]) -> int:
    """Elements in 16 bytes, if every row begins at a multiple of 16 bytes; else 1."""
    for x in tensors:
        if x is not None and (x.data_ptr() % 16 or x.stride(0) * x.element_size() % 16):
            return 1
    return 16 // next(x.element_size() for x in tensors if x is not None)


def _places(tensors: Sequence[Tensor | None], align: int) -> list[int]:
    """Address and row stride of each, as the table has them."""
    places = [(0, 0) if x is None else (x.data_ptr(), x.stride(0) // align) for x in tensors]
    return [word for place in places for word in place]


def _table(words: Sequence[int], device: torch.device) -> Tensor:
    table = torch.empty(len(words), dtype=torch.int64, device=device)
    for start in range(0, len(words), WORDS):
        part = words[start : start + WORDS]
        padded = [*part, *[0] * (WORDS - len(part))]
        _launch(fill_table, 1, table[start:], len(part), *padded, num_warps=1)
    return table


def _launch(kernel: Any, n_programs: int, *arguments: Any, **options: Any) -> None:
    kernel[(n_programs,)](*arguments, **options)


def _options(first: Tensor, tile: Tile, align: int, given: Given | None) -> dict[str, Any]:
    return {
        "DIM": first.shape[-1],
        "BR": tile.rows,
        "BC": tile.columns,
        "ALIGN": align,
        "DTYPE": DTYPES[first.dtype],
        "HAS_GIVEN": given is not None,
        "num_warps": tile.warps,
        "enable_fp_fusion": True,
    }


def _sizes(n_queries: int, n_sources: int, align: int) -> dict[str, int]:
    unroll = UNROLL if n_queries == 1 else 1
    sizes = {"Q": n_queries, "BS": triton.next_power_of_2(n_sources), "UNROLL": unroll}
    return sizes | _register_limit(n_queries, align)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _register_limit(n_queries: int, align: int) -> dict[str, int]:
    """For NVIDIA: left to itself, ptxas spills for the sake of occupancy."""
    if torch.version.hip is not None:
        return {}
    return {"maxnreg": 255 if n_queries > 1 else 96 if align > 1 else 168}


@cache
def _max_programs(device: torch.device, n_queries: int) -> int:
    """As many as have registers at once, since each has its own part of du."""
    if device.type != "cuda":
        return 2
    at_once = 5 if n_queries == 1 else 2
    return at_once * torch.cuda.get_device_properties(device).multi_processor_count


class TritonKernel(MemoryKernel):
    """These functions, for any number of queries, and their op."""

    device_type = "cpu" if INTERPRETED else "cuda"

    def __init__(self):
        self.op = define("triton_read", self, self.device_type.upper())

    def forward(
        self, folded_QD: Tensor, sources: Sequence[Tensor], given: Given | None, eps: float
    ) -> ReadResult:
        parts = [
            forward(folded_QD[part], sources, given and Given(*(x[part] for x in given)), eps)
            for part in _parts(len(folded_QD))
        ]
        if len(parts) == 1:
            return parts[0]
        mix_QD, lse_Q = (
            torch.cat(tensors) for tensors in zip(*(p[:2] for p in parts), strict=True)
        )
        logits_QS = torch.cat([part.saved[1] for part in parts])
        return ReadResult(mix_QD, lse_Q, (parts[0].saved[0], logits_QS))

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
        rstd_S, logits_QS = saved
        found = []
        for part in _parts(len(folded_QD)):
            grad_lse_Q = None if upstream.lse_Q is None else upstream.lse_Q[part]
            some = backward(
                Upstream(upstream.mixes[part], grad_lse_Q),
                folded_QD[part],
                sources,
                given and Given(*(x[part] for x in given)),
                (rstd_S, logits_QS[part]),
                into,
                needs_folded,
            )
            found.append(some)
            into = SourceGradients(into.buffers, [True] * len(into.buffers))
        if len(found) == 1:
            return found[0]
        return OtherGradients(*(_joined(tensors) for tensors in zip(*found, strict=True)))

    @property
    def description(self) -> str:
        where = "interpreted on the CPU" if INTERPRETED else torch.cuda.get_device_name()
        return f"Triton {triton.__version__}, {where}."


def _parts(n_queries: int) -> list[slice]:
    """As many queries at once as have room in registers."""
    return [slice(i, i + MAX_QUERIES) for i in range(0, n_queries, MAX_QUERIES)]


def _joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    given = [x for x in tensors if x is not None]
    return torch.cat(given) if given else None


@cache  # its op is defined once
def kernel() -> TritonKernel:
    """The kernel with its op.

    Raises:
        RuntimeError: no GPU, and no interpreter either.
    """
    if not INTERPRETED and not torch.cuda.is_available():
        raise RuntimeError("no CUDA device was found (TRITON_INTERPRET=1 interprets on the CPU)")
    return TritonKernel()
