"""Attention Residuals, Full and Block: each sublayer chooses what to read (arXiv:2603.15031).

    h_l = sum_i softmax_i(query_l . RMSNorm(v_i)) v_i         sections 3.1 (Full) and 3.2 (Block)

over the embedding, the sum of every finished block and the partial sum of the unfinished one. Full
is the layout of blocks of one sublayer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnres.layout import UNITS, BlockLayout, check_count, one_unit
from attnres.ops import depth_attention, depth_weights
from attnres.ops.border import check_eps
from attnres.residual.base import Residual, check_depth, check_output


class DepthState(NamedTuple):
    """What has been written so far."""

    blocks: tuple[Tensor, ...]  # the embedding, then one sum per finished block, each BTD
    partial: Tensor | None = None  # the sum of the unfinished block, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)


class DepthReader(nn.Module):
    """One query over depth and the norm of its keys."""

    def __init__(self, dim: int, eps: float, impl: str | None):
        super().__init__()
        self.query = nn.Parameter(torch.empty(dim))
        self.key_weight = nn.Parameter(torch.empty(dim))
        self.eps = eps
        self.impl = impl
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.query)  # at first all sources weigh the same
        nn.init.ones_(self.key_weight)

    def forward(self, sources: tuple[Tensor, ...]) -> Tensor:
        return depth_attention(self.query, sources, self.key_weight, eps=self.eps, impl=self.impl)

    def weights(self, sources: tuple[Tensor, ...]) -> Tensor:
        return depth_weights(self.query, sources, self.key_weight, eps=self.eps, impl=self.impl)


class FirstReader(nn.Module):
    """The read before the first sublayer: one source, so nothing to learn and no parameter.

    A parameter here would get a zero gradient at best; DDP waits for those that get none.
    """

    def reset_parameters(self) -> None:
        """There are none."""

    def forward(self, sources: tuple[Tensor, ...]) -> Tensor:
        return sources[0]

    def weights(self, sources: tuple[Tensor, ...]) -> Tensor:
        source = sources[0]
        dtype = torch.promote_types(source.dtype, torch.float32)
        return torch.ones((1, *source.shape[:-1]), dtype=dtype, device=source.device)


class AttnRes(Residual[DepthState]):
    """Attention over depth, with one reader a sublayer and one before the final norm.

    Args:
        dim: width of the hidden state.
        layout: which sublayers close a block; `BlockLayout.full(n)` is Full AttnRes.
        eps: RMSNorm epsilon of the keys.
        impl: implementation of depth attention, as in `depth_attention`.

    Raises:
        ValueError: a width that is not positive, no layout, an epsilon that is negative or not
            finite; later a depth, an output or a state that does not fit.
    """

    def __init__(self, dim: int, layout: BlockLayout, eps: float = 1e-6, impl: str | None = None):
        super().__init__()
        check_count("dim", dim)
        check_eps(eps)
        if not isinstance(layout, BlockLayout):
            raise ValueError(f"layout must be a BlockLayout, got {layout!r}")
        self.layout = layout
        self.n_sublayers = layout.n_sublayers
        later = (DepthReader(dim, eps, impl) for _ in range(layout.n_sublayers))
        self.readers = nn.ModuleList([FirstReader(), *later])

    def start(self, embed_BTD: Tensor) -> DepthState:
        return DepthState(blocks=(embed_BTD,))

    def read(self, state: DepthState, depth: int) -> tuple[Tensor, DepthState]:
        check_depth(depth, self.n_sublayers - 1)
        return self._reader(state, depth)(state.sources), state

    def write(self, state: DepthState, depth: int, out_BTD: Tensor) -> DepthState:
        check_depth(depth, self.n_sublayers - 1)
        self._check_state(state, depth)
        check_output(out_BTD, state.blocks[0], depth)
        out_BTD = out_BTD.to(state.blocks[0].dtype)
        total = out_BTD if state.partial is None else state.partial + out_BTD
        if self.layout.closes_after(depth):
            return DepthState(blocks=(*state.blocks, total))
        return DepthState(state.blocks, partial=total)

    def finish(self, state: DepthState) -> Tensor:
        return self._reader(state, self.n_sublayers)(state.sources)

    def reset_parameters(self) -> None:
        for reader in self.readers:
            cast(DepthReader | FirstReader, reader).reset_parameters()

    def stream(self, state: DepthState) -> Tensor:
        """The unfinished block's sum, or the sum of the block just finished."""
        return state.sources[-1]

    def weights(self, state: DepthState, depth: int) -> Tensor:
        check_depth(depth, self.n_sublayers)
        return self._reader(state, depth).weights(state.sources)

    def _reader(self, state: DepthState, depth: int) -> DepthReader | FirstReader:
        self._check_state(state, depth)
        return cast(DepthReader | FirstReader, self.readers[depth])

    def _check_state(self, state: DepthState, depth: int) -> None:
        expected = self.layout.n_sources(depth)
        if len(state.sources) != expected:
            raise ValueError(
                f"the state has {len(state.sources)} sources, at depth {depth} there are "
                f"{expected}: write the output of every sublayer once, in order"
            )


@dataclass(frozen=True, kw_only=True)
class AttnResConfig:
    """Full AttnRes, or Block AttnRes where one of the three units is given."""

    sublayers_per_block: int | None = None
    layers_per_block: int | None = None
    n_blocks: int | None = None
    eps: float = 1e-6

    def __post_init__(self):
        check_eps(self.eps)
        if self._units():
            one_unit(**self._units())

    def build(self, dim: int, n_sublayers: int) -> AttnRes:
        return AttnRes(dim, self.layout(n_sublayers), self.eps)

    def layout(self, n_sublayers: int) -> BlockLayout:
        if not self._units():
            return BlockLayout.full(n_sublayers)
        return BlockLayout.of(n_sublayers, **self._units())

    def _units(self) -> dict[str, int]:
        return {name: value for name in UNITS if (value := getattr(self, name)) is not None}

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"layout": self.layout(n_sublayers).to_json(), "eps": self.eps}
