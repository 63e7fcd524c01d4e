"""Delta Attention Residuals: attention over depth is added to the stream (arXiv:2605.18855).

    h_l = r_l + sum_i softmax_i(query_l . RMSNorm(v_i)) v_i

over the n sources of `AttnRes`, the embedding, block sums and the partial sum, with r_l, the sum of
all outputs before l. The paper sets it against attention over cumulative states; the sources of
AttnRes are outputs already, so that what differs is that the mix is added instead of taking r's
place. Full and Block are a layout, as in `AttnRes`.

With zero queries h = (1 + 1/n) r, since the sources add up to r: the standard model to the epsilon
of its norms. For Block that needs the partial sum among the sources. The released code has the
finished blocks alone there, and what it stores for a block is the running sum less the block before
instead of less the running sum at its begin, from the third block on another vector. Here both are
right. The first read has one source and is the embedding itself, as everywhere in this library.

Queries and gains train as in `AttnRes`.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.border import check_eps
from attnres.residual.around_stream import AroundStream, CenteredState
from attnres.residual.depth_reader import layout_of, units_of


class Delta(AroundStream):
    """The stream, and attention over depth besides; the parameters are those of `AttnRes`.

    Args:
        dim, layout, eps, impl, share_gradients: as in `AttnRes`.

    Raises:
        ValueError: as `AttnRes`.
    """

    def mixing(self, state: CenteredState, depth: int) -> tuple[Tensor, CenteredState]:
        row, state = super().mixing(state, depth)
        if depth == 0:
            return row, state
        return row + state.stream_BTD[..., self.dim :].movedim(-1, 0), state

    def read_around(self, state: CenteredState, depth: int) -> Tensor:
        reader = self.reader(state, depth)
        if depth == 0:
            return state.stream_BTD
        return state.stream_BTD + cast(Tensor, reader(state.sources))


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """`AttnResConfig` in the additive form: Full, or Block where a unit is given."""

    sublayers_per_block: int | None = None
    layers_per_block: int | None = None
    n_blocks: int | None = None
    eps: float = 1e-6

    def __post_init__(self):
        check_eps(self.eps)
        units_of(self)

    def build(self, dim: int, n_sublayers: int) -> Delta:
        return Delta(dim, self.layout(n_sublayers), self.eps)

    def layout(self, n_sublayers: int) -> BlockLayout:
        return layout_of(self, n_sublayers)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"layout": self.layout(n_sublayers).to_json(), "eps": self.eps}
