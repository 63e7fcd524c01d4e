"""What a pipeline sends and holds, planned before it runs (arXiv:2603.15031, section 4.1).

A chunk's first reader sees every source that exists, so at each hop the next chunk must be given
what its rank lacks: finished blocks, and the partial sum where the cut falls inside a block. A rank
that keeps sources across its chunks is sent each of them once. The backward mirrors the forward: a
copy's gradient is added up on the rank that holds it, in the backward of each chunk that used it,
and is sent back by the hop that brought the copy, which runs after all of these.

What this takes of `torch.distributed.pipelining` (2.13), so that stages can be built on it:

- `PipelineStage.forward` is given what the chunk before returned, and returns a tuple whose length
  may differ from stage to stage: here `Hop.names` of both sides. All of it goes to stage + 1, and
  a gradient of every input back to stage - 1, zeros where there is none; the runners refuse other
  neighbours (`_validate_adjacent_stage_communication`). Hence no hop skips a chunk: a block
  travels from rank to rank, and is never sent by its maker to all.
- Shapes are static: receive buffers are made once, one a micro-batch and input, and kept. So a hop
  lists the same tensors for every micro-batch. With `input_args` and `output_args` for every stage
  (tensors on the meta device will do) nothing is inferred; these must require gradients, else none
  is received for them. Without them each stage is run once on empty tensors of the right shape,
  which must leave no source in a cache.
- What a rank keeps is no input of its later stages, so it reaches them as a detached leaf; the
  gradient of the leaf is added to that of the copy in the backward of its home (`Copy.deposits`).
- A stage is not told its micro-batch: `forward_one_chunk(fwd_chunk_id, ...)` must be overridden, or
  the index passed as a keyword argument.
- A stage holds its outputs until its backward, and receive buffers for good; both are more than
  this plan, which says what must be held.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from attnres.distributed.chunks import Chunk, cut
from attnres.layout import BlockLayout

Keep = Literal["nothing", "received", "all"]


class Hop(NamedTuple):
    """What one chunk sends to the next; the backward sends a gradient of each tensor back."""

    sender: int  # a chunk
    blocks: tuple[int, ...]  # b0 is the embedding
    partial: bool  # whether the sum of the unfinished block is sent too, after the blocks

    @property
    def receiver(self) -> int:
        return self.sender + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors in order, each BTD, as `BlockLayout.source_names` has them."""
        return tuple(f"b{n}" for n in self.blocks) + ("partial",) * self.partial

    @property
    def n_vectors(self) -> int:
        """Vectors of D a token."""
        return len(self.blocks) + self.partial


@dataclass(frozen=True)
class Copy:
    """One source on one rank, from the chunk that received or made it to its last use.

    In the backward chunks run in reverse, so `home` is the last that touches it.
    """

    block: int | None  # None is the partial sum that a chunk starts from
    rank: int
    home: int  # chunk that received or made it
    received: bool
    readers: tuple[int, ...]  # chunks that read it, rising; only they and `home` send it on

    @property
    def forward_end(self) -> int:
        """Chunk after whose forward, and sending, it may be dropped where no backward comes."""
        return max((self.home, *self.readers))

    @property
    def backward_end(self) -> int | None:
        """Chunk after whose backward it may be dropped; None: no read needs it once it is sent."""
        return self.readers[0] if self.readers else None

    @property
    def deposits(self) -> tuple[int, ...]:
        """Chunks, in order of the backward, whose gradients of it wait on the rank for `home`."""
        return tuple(chunk for chunk in reversed(self.readers) if chunk != self.home)


@dataclass(frozen=True)
class PipelinePlan:
    """Hops and copies of a pipeline; made by `plan_pipeline`."""

    layout: BlockLayout
    n_stages: int
    n_virtual: int
    keep: Keep
    chunks: tuple[Chunk, ...]
    hops: tuple[Hop, ...] = field(init=False)
    copies: tuple[Copy, ...] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "hops", _hops(self.chunks, self.n_stages, self.keep))
        object.__setattr__(self, "copies", _copies(self.chunks, self.hops, self.n_stages))

    @property
    def n_chunks(self) -> int:
        return len(self.chunks)

    @property
    def wire(self) -> tuple[Hop, ...]:
        """Hops between two ranks; all of them where there is more than one."""
        return self.hops if self.n_stages > 1 else ()

    @property
    def gradient_hops(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Sending chunk, receiving chunk and names of gradients, in order of the backward."""
        return tuple((hop.receiver, hop.sender, hop.names) for hop in reversed(self.hops))

    @property
    def n_sent(self) -> int:
        """Vectors of D a token that a forward pass sends; a backward sends as many."""
        return sum(hop.n_vectors for hop in self.wire)

    @property
    def peak_sent(self) -> int:
        """Most vectors that one hop sends."""
        return max((hop.n_vectors for hop in self.wire), default=0)

    @property
    def held(self) -> tuple[int, ...]:
        """Vectors that each rank holds of a micro-batch between its forward and its backward."""
        ranks = [copy.rank for copy in self.copies if copy.backward_end is not None]
        return tuple(ranks.count(rank) for rank in range(self.n_stages))

    def blocks_sent(self, *, embedding: bool = False) -> tuple[int, ...]:
        """Blocks that each hop sends; the paper counts these, and leaves b0 out of its formula."""
        return tuple(sum(n > 0 or embedding for n in hop.blocks) for hop in self.wire)

    def sources(self, chunk: int) -> tuple[str, ...]:
        """What the first reader of a chunk sees, all of which is on its rank by then."""
        return self.layout.source_names(self.chunks[chunk].start)

    def copy_of(self, block: int | None, chunk: int) -> Copy:
        """The copy of a block, or of the partial sum, that a chunk reads, makes or sends."""
        for copy in self.copies:
            if copy.block == block and chunk in (copy.home, *copy.readers):
                return copy
        raise ValueError(f"chunk {chunk} uses no block {block}")

    def route(self, block: int, chunk: int) -> tuple[int, ...]:
        """Chunks by which a block came to one: its maker first, then each copy's home.

        The gradient goes the same way back. From each home but the first the hop before leads to
        the home before it, or to a later chunk of that rank, which deposits it there.
        """
        copy = self.copy_of(block, chunk)
        if not copy.received:
            return (copy.home,)
        return (*self.route(block, copy.home - 1), copy.home)


def plan_pipeline(
    layout: BlockLayout,
    n_stages: int,
    n_virtual: int = 1,
    cuts: Sequence[int] | None = None,
    keep: Keep = "all",
) -> PipelinePlan:
    """Plan what each hop sends and each rank holds.

    Args:
        layout, n_stages, n_virtual, cuts: as in `cut`.
        keep: what a rank keeps from chunk to chunk: "nothing", so that hops send every source;
            "received", the paper's, which is sent again what the rank itself made; or "all".

    Raises:
        ValueError: as `cut`; another `keep`.
    """
    if keep not in get_args(Keep):
        raise ValueError(f"keep must be one of {', '.join(get_args(Keep))}, got {keep!r}")
    return PipelinePlan(layout, n_stages, n_virtual, keep, cut(layout, n_stages, n_virtual, cuts))


def _hops(chunks: Sequence[Chunk], n_stages: int, keep: Keep) -> tuple[Hop, ...]:
    kept: list[set[int]] = [set() for _ in range(n_stages)]  # blocks, by rank
    hops = []
    for chunk in chunks:
        lacking = tuple(n for n in range(chunk.n_before) if n not in kept[chunk.rank])
        if chunk.index > 0:
            hops.append(Hop(chunk.index - 1, lacking, chunk.begun))
        if keep != "nothing":
            kept[chunk.rank] |= {*lacking, *(n for n in chunk.made if keep == "all" or n == 0)}
    return tuple(hops)


def _copies(chunks: Sequence[Chunk], hops: Sequence[Hop], n_stages: int) -> tuple[Copy, ...]:
    found: list[tuple[int | None, Chunk, bool, list[int]]] = []
    newest: list[dict[int | None, list[int]]] = [{} for _ in range(n_stages)]  # readers, by rank
    for chunk, hop in zip(chunks, (None, *hops), strict=True):
        readers_of = newest[chunk.rank]
        came = [] if hop is None else [*hop.blocks, *[None] * hop.partial]
        for block, received in [(n, True) for n in came] + [(n, False) for n in chunk.made]:
            readers_of[block] = []
            found.append((block, chunk, received, readers_of[block]))
        for block in (*range(chunk.n_before), *[None] * chunk.begun, *chunk.read_where_made):
            readers_of[block].append(chunk.index)
    return tuple(
        Copy(block, chunk.rank, chunk.index, received, tuple(readers))
        for block, chunk, received, readers in found
    )
