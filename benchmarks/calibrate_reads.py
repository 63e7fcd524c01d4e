"""Fits what the parts of a read without gradients take on this machine's CPU.

    python benchmarks/calibrate_reads.py

Prints the figures that stand in attnres/residual/costs_of_reads.py, and how far the times are from
what they say. One thread, process CPU time, the least of interleaved rounds; float32. Nothing is
printed while the kernel errs.
"""

import sys
from itertools import product
from typing import NamedTuple, cast

import torch
from correctness import ODD, WrongError, compare
from machine import describe_machine, keep_pages, print_machine
from rounds import Case, Timing, measure
from torch import Tensor

from attnres.ops import cpu, depth_attention_queries
from attnres.residual.costs_of_reads import ReadCosts

SIZES = ((1, 512), (1, 1024), (8, 1024), (64, 512), (512, 512), (512, 1024))  # tokens, width
SOURCES = (2, 5, 9, 17)
QUERIES = (1, 3, 5)
EPS = 1e-6


class Read(NamedTuple):
    n_tokens: int
    dim: int
    n_sources: int
    n_queries: int

    @property
    def parts(self) -> tuple[float, ...]:
        """How often a read of this shape has each part of `ReadCosts`."""
        n_numbers = self.n_tokens * self.dim
        n_moved = (self.n_sources + self.n_queries) * n_numbers
        n_products = self.n_sources * (1 + 2 * self.n_queries) * n_numbers
        return 1.0, self.n_sources, self.n_queries, n_moved, n_products


def main() -> None:
    torch.set_num_threads(1)
    check()
    print_machine(describe_machine())
    reads = [
        Read(*size, n_sources, n_queries)
        for size, n_sources, n_queries in product(SIZES, SOURCES, QUERIES)
    ]
    samples = measure({str(read): _case(read) for read in reads}, Timing(5, 60.0))
    least_s = torch.tensor([min(samples[str(read)]) for read in reads], dtype=torch.float64)
    parts = torch.tensor([read.parts for read in reads], dtype=torch.float64)
    costs_s = _fit(parts, least_s)
    print(ReadCosts(*(float(f"{x:.2g}") for x in costs_s.tolist())))
    off = (parts @ costs_s / least_s - 1).abs()
    print(f"off by {off.median():.0%} in the median, {off.max():.0%} at most")


def check() -> None:
    """WrongError where the kernel errs more than its definition does in float32, twice over."""
    n_tokens, dim, n_sources = ODD
    torch.manual_seed(0)
    rows = [torch.randn(n_tokens, dim) for _ in range(n_sources)]
    queries, weights = torch.randn(2, 3, dim) / dim**0.5
    with torch.inference_mode():
        found = cpu.kernel().quick.read([*queries], [*weights], rows, EPS, wants_lse=True)
    assert found is not None
    plain, exact = (
        depth_attention_queries(
            queries.to(dtype), [x.to(dtype) for x in rows], weights.to(dtype), impl="reference"
        )
        for dtype in (torch.float32, torch.float64)
    )
    own = torch.stack(found.mixes), cast(Tensor, found.lse_Q)
    given, usual, wanted = ({"mix": mix, "lse": lse} for mix, lse in (own, plain, exact))
    if findings := compare(given, usual, wanted):
        raise WrongError("\n".join(findings))


def _case(read: Read) -> Case:
    kernel = cpu.kernel().quick
    rows = [torch.randn(read.n_tokens, read.dim) for _ in range(read.n_sources)]
    queries = [torch.randn(read.dim) for _ in range(read.n_queries)]
    weights = [torch.ones(read.dim) for _ in range(read.n_queries)]

    def case() -> object:
        with torch.inference_mode():
            return kernel.read(queries, weights, rows, EPS, wants_lse=read.n_queries > 1)

    return case


def _fit(parts: Tensor, seconds: Tensor) -> Tensor:
    """Least squares of the relative errors; a part that would be negative is left out."""
    weighted = parts / seconds.unsqueeze(-1)
    kept = list(range(parts.shape[1]))
    while True:
        found = torch.linalg.lstsq(weighted[:, kept], torch.ones_like(seconds)).solution
        if bool((found >= 0).all()):
            costs = torch.zeros(parts.shape[1], dtype=parts.dtype)
            costs[kept] = found
            return costs
        kept.pop(int(found.argmin()))


if __name__ == "__main__":
    keep_pages()
    try:
        main()
    except WrongError as wrong:
        sys.exit(f"no time is printed while the kernel errs:\n{wrong}")
