"""Attention Residuals, Full and Block: each sublayer chooses what to read (arXiv:2603.15031).

    h_l = sum_i softmax_i(query_l . RMSNorm(v_i)) v_i         sections 3.1 (Full) and 3.2 (Block)

over the embedding, the sum of every finished block and the partial sum of the unfinished one. Full
is the layout of blocks of one sublayer.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.border import check_eps
from attnres.residual.ablated import Ablated
from attnres.residual.ablations import Ablations
from attnres.residual.base import Output, check_depth
from attnres.residual.depth_reader import AttendsOverDepth, layout_of, units_of
from attnres.residual.reading import ReadsQuickly
from attnres.residual.reading_state import ReadingState


class DepthState(NamedTuple):
    """What has been written so far."""

    blocks: tuple[Tensor, ...]  # the embedding, then one sum per finished block, each BTD
    partial: Tensor | None = None  # the sum of the unfinished block, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)


AnyState = DepthState | ReadingState  # with gradients, and without


class AttnRes(ReadsQuickly[AnyState]):
    """Attention over depth, with one reader a sublayer and one before the final norm.

    Args:
        dim: width of the hidden state.
        layout: which sublayers close a block; `BlockLayout.full(n)` is Full AttnRes.
        eps: RMSNorm epsilon of the keys.
        impl: implementation of depth attention, as in `depth_attention`.
        share_gradients: let all readers of a source add to one gradient (`attnres.ops.own`) where
            a backward allows it; False leaves the additions to autograd.

    Raises:
        ValueError: a width that is not positive, no layout, an epsilon that is negative or not
            finite; later a depth, an output or a state that does not fit.
    """

    def start(self, embed_BTD: Tensor) -> AnyState:
        return self.quick_start(embed_BTD) or DepthState(blocks=(self.as_source(embed_BTD),))

    def read(self, state: AnyState, depth: int) -> tuple[Tensor, AnyState]:
        check_depth(depth, self.n_sublayers - 1)
        if isinstance(state, ReadingState):
            return self.quick_read(state, depth)
        return self.reader(state, depth)(state.sources), state

    def write(self, state: AnyState, depth: int, out_BTD: Output) -> AnyState:
        if isinstance(state, ReadingState):
            return self.quick_write(state, depth, out_BTD)
        return DepthState(*self.written(state, depth, out_BTD))

    def finish(self, state: AnyState) -> Tensor:
        if isinstance(state, ReadingState):
            return self.quick_read(state, self.n_sublayers)[0]
        return self.reader(state, self.n_sublayers)(state.sources)


@dataclass(frozen=True, kw_only=True)
class AttnResConfig:
    """Full AttnRes, or Block AttnRes where one of the three units is given.

    What follows `eps` changes one part of it, as `Ablations` says; then `build` gives `Ablated`.
    """

    sublayers_per_block: int | None = None
    layers_per_block: int | None = None
    n_blocks: int | None = None
    eps: float = 1e-6
    query: str | None = None
    weights: str | None = None
    kernel: str | None = None
    key_norm: bool | None = None
    n_heads: int | None = None
    key_rank: int | None = None
    query_std: float | None = None
    count_prior: float | None = None
    count_power: float | None = None
    null_source: bool | None = None
    routes: str | None = None

    def __post_init__(self):
        check_eps(self.eps)
        units_of(self)
        self.ablations  # noqa: B018  refuses what makes no sense

    def build(self, dim: int, n_sublayers: int) -> AttendsOverDepth[Any]:
        layout, ablations = self.layout(n_sublayers), self.ablations
        if not ablations.changes():
            return AttnRes(dim, layout, self.eps)
        return Ablated(dim, layout, ablations, self.eps)

    @property
    def ablations(self) -> Ablations:
        return Ablations(**{field.name: getattr(self, field.name) for field in fields(Ablations)})

    def layout(self, n_sublayers: int) -> BlockLayout:
        return layout_of(self, n_sublayers)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        layout = self.layout(n_sublayers).to_json()
        return {"layout": layout, "eps": self.eps, **self.ablations.of_function()}
