"""Attention Residuals around the ordinary stream: the form in which a pretrained model is kept.

    h_l = r_l + sum_i (n alpha_i - 1) v_i

over the n sources of `AttnRes`, whose weights are alpha, and r_l, the sum of all outputs before l
in the order of an ordinary residual. As the sources add up to r_l, this is n times the mix of
`AttnRes` for every query; where all queries are zero it is r_l itself, bit for bit.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.border import check_eps
from attnres.residual.base import Output, Start, Traffic, check_depth, parts_of
from attnres.residual.depth_reader import AttendsOverDepth, DepthReader, layout_of, units_of


class CenteredState(NamedTuple):
    """What has been written so far, and all of it in one sum."""

    blocks: tuple[Tensor, ...]  # the embedding, then one sum per finished block, each BTD
    stream_BTD: Tensor  # the ordinary residual stream
    partial: Tensor | None = None  # the sum of the unfinished block, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)


class Centered(AttendsOverDepth[CenteredState]):
    """`AttnRes` times the number of sources: the same parameters and state dict.

    With zero queries every read is that of `Standard`, bit for bit, in any dtype and for any
    sublayers, and so are gradients, up to the order in which autograd adds them. `stream` is the
    ordinary residual stream. A source that is not finite makes
    its token NaN, in every channel and from the next read on.

    Args:
        dim, layout, eps, impl, share_gradients: as in `AttnRes`.

    Raises:
        ValueError: as `AttnRes`.
    """

    def start(self, embed_BTD: Tensor) -> CenteredState:
        return CenteredState(blocks=(self.as_source(embed_BTD),), stream_BTD=embed_BTD)

    def read(self, state: CenteredState, depth: int) -> tuple[Tensor, CenteredState]:
        check_depth(depth, self.n_sublayers - 1)
        return self._read(state, depth), state

    def write(self, state: CenteredState, depth: int, out_BTD: Output) -> CenteredState:
        blocks, partial = self.written(state, depth, out_BTD)
        stream_BTD = state.stream_BTD
        for part_BTD in parts_of(out_BTD, stream_BTD, depth):
            stream_BTD = stream_BTD + part_BTD
        return CenteredState(blocks, stream_BTD, partial)

    def finish(self, state: CenteredState) -> Tensor:
        return self._read(state, self.n_sublayers)

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: CenteredState) -> Tensor:
        return state.stream_BTD

    def mixing(self, state: CenteredState, depth: int) -> tuple[Tensor, CenteredState]:
        row, state = super().mixing(state, depth)
        return len(state.sources) * row, state

    def traffic(self, depth: int) -> Traffic:
        """What `AttnRes` moves and, from the second sublayer on, the stream: read, and written."""
        n_read, n_written = super().traffic(depth)
        return Traffic(n_read + (1 if depth else 2), n_written + 1)

    def _read(self, state: CenteredState, depth: int) -> Tensor:
        reader = self.reader(state, depth)
        if depth == 0:
            return state.stream_BTD
        return cast(DepthReader, reader).centered(state.sources, state.stream_BTD)


@dataclass(frozen=True, kw_only=True)
class CenteredConfig:
    """`AttnResConfig` in the centered form: Full, or Block where a unit is given."""

    sublayers_per_block: int | None = None
    layers_per_block: int | None = None
    n_blocks: int | None = None
    eps: float = 1e-6

    def __post_init__(self):
        check_eps(self.eps)
        units_of(self)

    def build(self, dim: int, n_sublayers: int) -> Centered:
        return Centered(dim, self.layout(n_sublayers), self.eps)

    def layout(self, n_sublayers: int) -> BlockLayout:
        return layout_of(self, n_sublayers)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """The function is that of `Summed`, so a checkpoint of one is a checkpoint of both."""
        return {"method": "sum", "layout": self.layout(n_sublayers).to_json(), "eps": self.eps}
