"""Which readers are asked at once where no gradient is recorded: an estimate of what reads take.

print(model.residual.read_plan(n_tokens=1))
"""

from typing import NamedTuple

from attnres.layout import BlockLayout
from attnres.residual.groups import Group


class ReadCosts(NamedTuple):
    """Seconds that parts of a read take; a read of S sources for Q queries is the sum of them."""

    call_s: float
    source_s: float  # a source
    query_s: float  # a query
    number_s: float  # a number that is read, once a source, or written, once a query
    product_s: float  # a multiply-add: of a source's number 1, and 2 for each query

    def seconds(self, n_numbers: int, n_sources: int, n_queries: int = 1) -> float:
        """Of a read of sources of `n_numbers` each."""
        n_moved = (n_sources + n_queries) * n_numbers
        n_products = n_sources * (1 + 2 * n_queries) * n_numbers
        overhead_s = self.call_s + n_sources * self.source_s + n_queries * self.query_s
        return overhead_s + n_moved * self.number_s + n_products * self.product_s


# cpu: `python benchmarks/calibrate_reads.py`, one core. cuda: estimates, nothing was measured.
COSTS = {
    "cpu": ReadCosts(8.7e-6, 5.8e-7, 5.9e-6, 7.4e-11, 4.6e-11),
    "cuda": ReadCosts(3.0e-5, 1.0e-7, 1.0e-7, 1.0e-12, 0.0),
}


class GroupPlan(NamedTuple):
    """The readers from `first` to `last`, and what each way of reading takes them."""

    first: int
    last: int
    n_asked: int  # blocks that they could be asked about at once; 0 where that saves no read
    one_s: float
    two_s: float
    in_two: bool  # whether they are


class ReadPlan(NamedTuple):
    """How every group of readers reads."""

    n_tokens: int
    dim: int
    device_type: str
    groups: tuple[GroupPlan, ...]

    @property
    def n_asked(self) -> tuple[int, ...]:
        """Blocks that the group of each reader asks at once, by depth; 0 where it does not."""
        return tuple(
            group.n_asked * group.in_two
            for group in self.groups
            for _ in range(group.first, group.last + 1)
        )

    def __str__(self) -> str:
        head = f"{self.n_tokens} tokens, D = {self.dim}, {self.device_type}; estimates in us\n"
        rows = [("readers", "asked at once", "one phase", "two phases", "chosen")]
        for group in self.groups:
            name = f"{group.first} to {group.last}"
            one, two = f"{group.one_s * 1e6:.3g}", f"{group.two_s * 1e6:.3g}"
            if not group.n_asked:
                rows.append((name, "-", one, "-", "one"))
            else:
                chosen = "two" if group.in_two else "one"
                rows.append((name, f"{group.n_asked} sources", one, two, chosen))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return head + "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )


def plan_reads(
    layout: BlockLayout,
    of_group: tuple[Group, ...],
    n_tokens: int,
    dim: int,
    device_type: str,
    reads: str,
) -> ReadPlan:
    """The cheaper way for each group, or the one that `reads` names.

    Without figures for a device those of a GPU are taken.
    """
    costs = COSTS.get(device_type, COSTS["cuda"])
    found, first = [], 0
    while first < len(of_group):
        last, n_asked = of_group[first]
        one_s, two_s = _seconds(layout, first, last, n_asked, n_tokens * dim, costs)
        in_two = n_asked > 0 and (reads == "two" or (reads == "auto" and two_s < one_s))
        found.append(GroupPlan(first, last, n_asked, one_s, two_s, in_two))
        first = last + 1
    return ReadPlan(n_tokens, dim, device_type, tuple(found))


def _seconds(
    layout: BlockLayout, first: int, last: int, n_asked: int, n_numbers: int, costs: ReadCosts
) -> tuple[float, float]:
    """In one phase and in two; the very first read takes nothing."""
    n_sources = [layout.n_sources(depth) for depth in range(max(first, 1), last + 1)]
    one_s = sum(costs.seconds(n_numbers, n) for n in n_sources)
    if not n_asked:
        return one_s, one_s
    phase_1_s = costs.seconds(n_numbers, n_asked, last + 1 - first)
    later = [n - n_asked for n in n_sources if n > n_asked]
    return one_s, phase_1_s + sum(costs.seconds(n_numbers, 1 + n) for n in later)
