"""Attention Residuals around the ordinary stream: the form in which a pretrained model is kept.

    h_l = r_l + sum_i (n alpha_i - 1) v_i

over the n sources of `AttnRes`, whose weights are alpha, and r_l, the sum of all outputs before l
in the order of an ordinary residual. As the sources add up to r_l, this is n times the mix of
`AttnRes` for every query; where all queries are zero it is r_l itself, bit for bit.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.border import check_eps
from attnres.residual.around_stream import AroundStream, CenteredState
from attnres.residual.base import Start
from attnres.residual.depth_reader import DepthReader, layout_of, units_of


class Centered(AroundStream):
    """`AttnRes` times the number of sources: the same parameters and state dict.

    With zero queries every read is that of `Standard`, bit for bit, in any dtype and for any
    sublayers, and so are gradients, up to the order in which autograd adds them. `stream` is the
    ordinary residual stream. A source that is not finite makes its token NaN, in every channel and
    from the next read on.

    Args:
        dim, layout, eps, impl, share_gradients: as in `AttnRes`.

    Raises:
        ValueError: as `AttnRes`.
    """

    @property
    def starts_as(self) -> Start:
        return "standard"

    def mixing(self, state: CenteredState, depth: int) -> tuple[Tensor, CenteredState]:
        row, state = super().mixing(state, depth)
        return len(state.sources) * row, state

    def read_around(self, state: CenteredState, depth: int) -> Tensor:
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
