"""Which readers are asked at once, and what two phases move (arXiv:2603.15031, section 4.2)."""

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

from attnres.layout import BlockLayout, check_count
from attnres.residual.base import Traffic
from attnres.residual.depth_reader import traffic_over_depth


class Group(NamedTuple):
    """Readers that are asked at once."""

    last: int  # depth of the last of them
    n_asked: int  # blocks that are read in phase 1; 0 where every reader reads for itself


def groups(
    layout: BlockLayout, readers_per_group: int | None = None, cuts: Iterable[int] = ()
) -> tuple[Group, ...]:
    """The group of each reader, by depth; the output read belongs to the last.

    At each of the depths `cuts` a group begins, wherever others do.
    """
    found: list[Group] = []
    starts = sorted({*_first_readers(layout, readers_per_group), *cuts})
    for first, following in zip(starts, [*starts[1:], layout.n_sublayers + 1], strict=True):
        n_readers = following - first
        n_finished = 1 + sum(end < first for end in layout.ends)
        # one reader, or one block, is read no less often in two phases
        n_asked = n_finished if min(n_readers, n_finished) > 1 else 0
        found += [Group(following - 1, n_asked)] * n_readers
    return tuple(found)


def traffic_in_two_phases(layout: BlockLayout, of_group: tuple[Group, ...], depth: int) -> Traffic:
    """What reading and writing at `depth` move, with the group of each reader."""
    last, n_asked = of_group[depth]
    n_read, n_written = traffic_over_depth(layout, depth)
    if n_asked == 0:
        return Traffic(n_read, n_written)
    is_first = depth == 0 or of_group[depth - 1].last != last
    if is_first:
        n_written += last + 1 - depth  # a mix for each reader of the group
    else:
        n_read -= n_asked
    if layout.n_sources(depth) == n_asked:
        return Traffic(n_read, n_written - 1)  # the mix of phase 1 is what is read
    return Traffic(n_read + 1, n_written)


def _first_readers(layout: BlockLayout, readers_per_group: int | None) -> list[int]:
    """Depth of the first reader of each group."""
    if readers_per_group is None:
        if max(layout.sizes) > 1:
            return [0, *(end + 1 for end in layout.ends[:-1])]
        readers_per_group = round(sqrt(layout.n_sublayers))  # fewest reads and writes together
    check_count("readers_per_group", readers_per_group)
    return list(range(0, layout.n_sublayers, readers_per_group))
