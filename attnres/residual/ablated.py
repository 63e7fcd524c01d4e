"""AttnRes with one part changed: the ablations of arXiv:2603.15031, section 5.3, and of others.

`Ablations` says what there is, what the paper leaves open and what is chosen. Plain PyTorch over
stacked sources: every read saves as much as there are sources, where `AttnRes` saves scalars.

What starts at zero starts with equal weights, so that a read is a multiple of the ordinary stream;
not so with `query_std`, and with blocks whose sums are divided by another power of their count than
weighs them.
"""

from itertools import accumulate
from typing import NamedTuple, cast

from torch import Tensor, nn

from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout
from attnres.residual.ablated_reader import AblatedReader
from attnres.residual.ablations import Ablations
from attnres.residual.base import Mix, Output, Start, Traffic, Tuning, Ways, check_depth
from attnres.residual.coordinates import row_of_read
from attnres.residual.depth_reader import AttendsOverDepth, FirstReader


class AblatedState(NamedTuple):
    """What has been written so far and, where a query is made of it, what was read last."""

    blocks: tuple[Tensor, ...]  # the embedding, then one sum per finished block, each BTD
    partial: Tensor | None = None  # the sum of the unfinished block, BTD
    before: Tensor | None = None  # the mix of the read before, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)


class Ablated(AttendsOverDepth[AblatedState]):
    """`AttnRes` but for what `ablations` changes.

    Args:
        dim, layout, eps: as in `AttnRes`.
        ablations: the changes.

    Raises:
        ValueError: as `AttnRes`; heads that do not divide the width, keys wider than it, counts
            in Full, where all of them are one.
    """

    def __init__(self, dim: int, layout: BlockLayout, ablations: Ablations, eps: float = 1e-6):
        super().__init__(dim, layout, eps, share_gradients=False)
        _check_sizes(dim, layout, ablations)
        self.ablations = ablations
        later = (
            AblatedReader(dim, counts(layout, depth), eps, ablations, self.has_ways(depth))
            for depth in range(1, layout.n_sublayers + 1)
        )
        self.readers = nn.ModuleList([FirstReader(), *later])

    def start(self, embed_BTD: Tensor) -> AblatedState:
        before_BTD = embed_BTD if self.ablations.query == "input" else None
        return AblatedState(blocks=(embed_BTD,), before=before_BTD)

    def read(self, state: AblatedState, depth: int) -> tuple[Mix, AblatedState]:
        check_depth(depth, self.n_sublayers - 1)
        *_, value_BTD = mixes = self._mixes(state, depth)
        if self.ablations.query == "input":
            state = state._replace(before=value_BTD)
        if self.has_ways(depth):
            return Ways(mixes[0], mixes[0], value_BTD), state
        return value_BTD, state

    def write(self, state: AblatedState, depth: int, out_BTD: Output) -> AblatedState:
        return AblatedState(*self.written(state, depth, out_BTD), state.before)

    def finish(self, state: AblatedState) -> Tensor:
        return self._mixes(state, self.n_sublayers)[0]

    def has_ways(self, depth: int) -> bool:
        """An attention is the first sublayer of a layer; where depth 0 reads, all ways are one."""
        is_attention = depth % SUBLAYERS_PER_LAYER == 0
        return self.ablations.routes == "qk_v" and is_attention and 0 < depth < self.n_sublayers

    def is_untrained(self) -> bool:
        readers = (reader for reader in self.readers if isinstance(reader, AblatedReader))
        return all(reader.is_untrained() for reader in readers)

    @property
    def starts_as(self) -> Start:
        is_uneven = self.ablations.alpha != self.ablations.beta
        return "other" if is_uneven or self.ablations.query_std is not None else "multiple"

    def weights(self, state: AblatedState, depth: int) -> Tensor:
        """Means over heads, of the values where they have a route; their sum may be other than 1.

        They are those of sources as they are mixed, divided by the power of their count.
        """
        check_depth(depth, self.n_sublayers)
        reader = self.reader(state, depth)
        if isinstance(reader, FirstReader):
            return reader.weights(state.sources)
        return cast(AblatedReader, reader).weights(state.sources, state.before)

    def mixing(self, state: AblatedState, depth: int) -> tuple[Tensor, AblatedState]:
        """With heads, the mean over channels is that over heads."""
        check_depth(depth, self.n_sublayers)
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """As `AttnRes`; a projected query is made of the mix before, written and read again."""
        n_read, n_written = super().traffic(depth)
        if self.ablations.query == "input" and depth > 0:
            width = (self.ablations.key_rank or self.dim) / self.dim
            n_read, n_written = n_read + 1 + width, n_written + width
        return Traffic(n_read, n_written + int(self.has_ways(depth)))

    def tuning(self) -> tuple[Tuning, ...]:
        """Vectors and scalars as those of `AttnRes`; the projections of queries decay, and slower.

        An entry of W h moves by the sum of D steps of AdamW, which for tokens that differ grows
        with sqrt(D): that is taken away. Decay pulls W to zero, as it does other matrices.
        """
        if self.ablations.query != "input":
            return super().tuning()
        names = [name for name, _ in self.named_parameters()]
        matrices = tuple(name for name in names if name.endswith("query"))
        others = tuple(name for name in names if name not in matrices)
        projections = Tuning(matrices, lr_scale=self.dim**-0.5, is_decayed=True)
        return (projections, Tuning(others)) if others else (projections,)

    def _mixes(self, state: AblatedState, depth: int) -> tuple[Tensor, ...]:
        reader = self.reader(state, depth)
        if isinstance(reader, FirstReader):
            return (reader(state.sources),)
        return cast(AblatedReader, reader)(state.sources, state.before)


def counts(layout: BlockLayout, depth: int) -> tuple[int, ...]:
    """Outputs in each source of the reader at `depth`; the embedding is one."""
    starts = [0, *accumulate(layout.sizes)]
    sizes = [min(size, depth - start) for start, size in zip(starts, layout.sizes, strict=False)]
    return (1, *(size for size in sizes if size > 0))


def _check_sizes(dim: int, layout: BlockLayout, ablations: Ablations) -> None:
    """ValueError where the changes do not fit a width or a layout."""
    n_heads, rank = ablations.n_heads or 1, ablations.key_rank or dim
    if dim % n_heads:
        raise ValueError(f"n_heads={n_heads} does not divide the width {dim}")
    if rank > dim:
        raise ValueError(f"key_rank={rank} is more than the width {dim}")
    for name in ("count_prior", "count_power"):
        if getattr(ablations, name) and max(layout.sizes) == 1:
            raise ValueError(
                f"{name}={getattr(ablations, name)} changes nothing in Full, whose sources are "
                "single outputs: give a layout of blocks"
            )
