"""Attention Residuals as a sum: h_l = n sum_i alpha_i v_i over the n sources of `AttnRes`.

With zero queries this is the ordinary residual stream, to rounding, for any sublayers.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.border import check_eps
from attnres.residual.attn_res import DepthState
from attnres.residual.base import Output, Start, check_depth
from attnres.residual.depth_reader import AttendsOverDepth, layout_of, units_of


class Summed(AttendsOverDepth[DepthState]):
    """`AttnRes` times the number of sources: the same parameters and state dict.

    `Centered` is the same model, exact at the start, for one more tensor BTD in the state.

    Args:
        dim, layout, eps, impl, share_gradients: as in `AttnRes`.

    Raises:
        ValueError: as `AttnRes`.
    """

    def start(self, embed_BTD: Tensor) -> DepthState:
        return DepthState(blocks=(self.as_source(embed_BTD),))

    def read(self, state: DepthState, depth: int) -> tuple[Tensor, DepthState]:
        check_depth(depth, self.n_sublayers - 1)
        return self._read(state, depth), state

    def write(self, state: DepthState, depth: int, out_BTD: Output) -> DepthState:
        return DepthState(*self.written(state, depth, out_BTD))

    def finish(self, state: DepthState) -> Tensor:
        return self._read(state, self.n_sublayers)

    @property
    def starts_as(self) -> Start:
        return "standard"

    def mixing(self, state: DepthState, depth: int) -> tuple[Tensor, DepthState]:
        row, state = super().mixing(state, depth)
        return len(state.sources) * row, state

    def _read(self, state: DepthState, depth: int) -> Tensor:
        mix_BTD = self.reader(state, depth)(state.sources)
        return mix_BTD if depth == 0 else len(state.sources) * mix_BTD


@dataclass(frozen=True, kw_only=True)
class SummedConfig:
    """`AttnResConfig` in the sum form: Full, or Block where a unit is given."""

    sublayers_per_block: int | None = None
    layers_per_block: int | None = None
    n_blocks: int | None = None
    eps: float = 1e-6

    def __post_init__(self):
        check_eps(self.eps)
        units_of(self)

    def build(self, dim: int, n_sublayers: int) -> Summed:
        return Summed(dim, self.layout(n_sublayers), self.eps)

    def layout(self, n_sublayers: int) -> BlockLayout:
        return layout_of(self, n_sublayers)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"layout": self.layout(n_sublayers).to_json(), "eps": self.eps}
