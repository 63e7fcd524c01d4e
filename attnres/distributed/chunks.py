"""Chunks of consecutive sublayers, and which rank of a pipeline runs each.

P ranks hold V chunks each, C = PV; rank r runs chunks r, r + P, r + 2P and so on (a loop). What
`torch.distributed.pipelining` calls a stage is a chunk here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout, check_count


@dataclass(frozen=True)
class Chunk:
    """Sublayers `start` to `stop` - 1; the last chunk also has the output read."""

    index: int
    rank: int
    start: int
    stop: int
    n_before: int  # blocks that exist when it starts, b0 counted; 0 for the first chunk
    begun: bool  # whether a block is unfinished when it starts
    made: tuple[int, ...]  # blocks that it finishes; b0, the embedding, is the first chunk's
    read_where_made: tuple[int, ...]  # those of `made` that a reader of this chunk sees

    @property
    def n_sublayers(self) -> int:
        return self.stop - self.start


def cut(
    layout: BlockLayout, n_stages: int, n_virtual: int = 1, cuts: Sequence[int] | None = None
) -> tuple[Chunk, ...]:
    """The chunks of a model.

    Args:
        layout: which sublayers close a block; a cut may fall inside one.
        n_stages: ranks of the pipeline, P.
        n_virtual: chunks a rank, V.
        cuts: depth of the first sublayer of each chunk but the first; None is `even_cuts`.

    Raises:
        ValueError: a count that is no positive integer, more chunks than sublayers, cuts of another
            number, or that do not rise within the model.
    """
    check_count("n_stages", n_stages)
    check_count("n_virtual", n_virtual)
    n_chunks = n_stages * n_virtual
    if cuts is None:
        cuts = even_cuts(layout.n_sublayers, n_chunks)
    _check_cuts(cuts, n_chunks, layout.n_sublayers)
    edges = pairwise((0, *cuts, layout.n_sublayers))
    return tuple(_chunk(layout, i, i % n_stages, *edge) for i, edge in enumerate(edges))


def even_cuts(n_sublayers: int, n_chunks: int, *, whole_layers: bool = False) -> tuple[int, ...]:
    """Cuts into chunks that differ by at most one sublayer, or one layer, larger chunks first.

    Args:
        n_sublayers, n_chunks: of the model, and how many it is cut into.
        whole_layers: never cut between the two sublayers of a transformer layer.

    Raises:
        ValueError: more chunks than there are sublayers, or layers.
    """
    check_count("n_sublayers", n_sublayers)
    check_count("n_chunks", n_chunks)
    unit, name = (SUBLAYERS_PER_LAYER, "layers") if whole_layers else (1, "sublayers")
    n_units, odd = divmod(n_sublayers, unit)
    if odd:
        raise ValueError(f"{n_sublayers} sublayers are no whole number of transformer layers")
    if n_chunks > n_units:
        raise ValueError(f"{n_chunks} chunks are more than the model's {n_units} {name}")
    size, n_larger = divmod(n_units, n_chunks)
    return tuple((i * size + min(i, n_larger)) * unit for i in range(1, n_chunks))


def _chunk(layout: BlockLayout, index: int, rank: int, start: int, stop: int) -> Chunk:
    is_last = stop == layout.n_sublayers
    made = [(n, end) for n, end in enumerate(layout.ends, start=1) if start <= end < stop]
    read = [n for n, end in made if end + 1 < stop or is_last]
    embedding = [0] if index == 0 else []
    names = layout.source_names(start)
    return Chunk(
        index=index,
        rank=rank,
        start=start,
        stop=stop,
        n_before=0 if index == 0 else sum(name != "partial" for name in names),
        begun="partial" in names,
        made=(*embedding, *(n for n, _ in made)),
        read_where_made=(*embedding, *read),
    )


def _check_cuts(cuts: Sequence[int], n_chunks: int, n_sublayers: int) -> None:
    if len(cuts) != n_chunks - 1:
        raise ValueError(
            f"{n_chunks} chunks are made by {n_chunks - 1} cuts, got {len(cuts)}: {list(cuts)}"
        )
    for depth in cuts:
        check_count("a cut", depth)
    if any(depth >= following for depth, following in pairwise((*cuts, n_sublayers))):
        raise ValueError(
            f"cuts must rise and lie between 1 and {n_sublayers - 1}, got {list(cuts)}"
        )
