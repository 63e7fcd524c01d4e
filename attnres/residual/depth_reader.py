"""What the methods that attend over depth share: their readers and what they write."""

from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from attnres.layout import UNITS, BlockLayout, check_count, one_unit
from attnres.ops import centered_attention, depth_attention, depth_weights, merge, own
from attnres.ops.border import check_eps
from attnres.residual.base import (
    Output,
    Residual,
    Start,
    Traffic,
    check_depth,
    check_sources,
    parts_of,
)


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

    def centered(self, sources: tuple[Tensor, ...], stream_D: Tensor) -> Tensor:
        """The stream, which is the sum of the sources, and what this reader adds to it."""
        query_D, key_weight_D = self.query, self.key_weight
        return centered_attention(
            query_D, sources, stream_D, key_weight_D, eps=self.eps, impl=self.impl
        )

    def go_on(self, mix_D: Tensor, lse: Tensor, sources: tuple[Tensor, ...]) -> Tensor:
        """The mix of everything, from that of some sources and from the others."""
        query_D, key_weight_D = self.query, self.key_weight
        mix_D, _ = merge(mix_D, lse, sources, query_D, key_weight_D, eps=self.eps, impl=self.impl)
        return mix_D

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


class Sources(Protocol):
    """What a state holds at least."""

    @property
    def blocks(self) -> tuple[Tensor, ...]: ...

    @property
    def partial(self) -> Tensor | None: ...

    @property
    def sources(self) -> tuple[Tensor, ...]: ...


State = TypeVar("State", bound=Sources)


class AttendsOverDepth(Residual[State]):
    """One reader a sublayer and one before the final norm, over the blocks of a layout.

    Abstract: a method says what its state is and how it reads it. Arguments as in `AttnRes`.
    """

    def __init__(
        self,
        dim: int,
        layout: BlockLayout,
        eps: float = 1e-6,
        impl: str | None = None,
        share_gradients: bool = True,
    ):
        super().__init__()
        check_count("dim", dim)
        check_eps(eps)
        if not isinstance(layout, BlockLayout):
            raise ValueError(f"layout must be a BlockLayout, got {layout!r}")
        self.dim = dim
        self.layout = layout
        self.n_sublayers = layout.n_sublayers
        self.share_gradients = share_gradients
        later = (DepthReader(dim, eps, impl) for _ in range(layout.n_sublayers))
        self.readers = nn.ModuleList([FirstReader(), *later])

    def reset_parameters(self) -> None:
        for reader in self.readers:
            cast(DepthReader | FirstReader, reader).reset_parameters()

    def is_untrained(self) -> bool:
        queries = [reader.query for reader in self.readers if isinstance(reader, DepthReader)]
        return not any(query.detach().any() for query in queries)

    @property
    def starts_as(self) -> Start:
        return "multiple"

    def stream(self, state: State) -> Tensor:
        """The unfinished block's sum, or the sum of the block just finished."""
        return state.sources[-1]

    def weights(self, state: State, depth: int) -> Tensor:
        check_depth(depth, self.n_sublayers)
        return self.reader(state, depth).weights(state.sources)

    def mixing(self, state: State, depth: int) -> tuple[Tensor, State]:
        check_depth(depth, self.n_sublayers)
        vectors = [source_BTD[..., : self.dim] for source_BTD in state.sources]
        alpha_SBT = self.reader(state, depth).weights(tuple(vectors))
        rows = [source_BTD[..., self.dim :] for source_BTD in state.sources]
        row_SBTD = torch.stack(rows).to(alpha_SBT.dtype)
        return torch.einsum("s...,s...d->d...", alpha_SBT, row_SBTD), state

    def traffic(self, depth: int) -> Traffic:
        """Each source once for the mix, the output and its block's sum for the write."""
        check_depth(depth, self.n_sublayers - 1)
        return traffic_over_depth(self.layout, depth)

    def n_sources(self, depth: int) -> int:
        """Sources of the reader at `depth`."""
        return self.layout.n_sources(depth)

    def reader(self, state: State, depth: int) -> DepthReader | FirstReader:
        """The reader at `depth`; ValueError where the state is not the one that it reads."""
        check_sources(len(state.sources), self.n_sources(depth), depth)
        return cast(DepthReader | FirstReader, self.readers[depth])

    def as_source(self, finished_BTD: Tensor) -> Tensor:
        """What is written no more, the embedding or a block's sum, for all its readers."""
        return own(finished_BTD) if self.share_gradients else finished_BTD

    def written(
        self, state: State, depth: int, out_BTD: Output
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The blocks and the partial sum after the sublayer at `depth`."""
        check_depth(depth, self.n_sublayers - 1)
        self.reader(state, depth)
        total_BTD = state.partial
        for part_BTD in parts_of(out_BTD, state.blocks[0], depth):
            total_BTD = part_BTD if total_BTD is None else total_BTD + part_BTD
        if self.layout.closes_after(depth):
            return (*state.blocks, self.as_source(cast(Tensor, total_BTD))), None
        return state.blocks, total_BTD


def traffic_over_depth(layout: BlockLayout, depth: int) -> Traffic:
    """What reading and writing at `depth` move where every reader reads for itself."""
    begins = depth == 0 or layout.closes_after(depth - 1)
    n_read, n_written = layout.n_sources(depth), int(depth > 0)
    return Traffic(n_read + (0 if begins else 2), n_written + (0 if begins else 1))


def units_of(config: Any) -> dict[str, int]:
    """The unit that a config gives its blocks in, with its value; empty for Full."""
    given = {name: value for name in UNITS if (value := getattr(config, name)) is not None}
    if given:
        one_unit(**given)
    return given


def layout_of(config: Any, n_sublayers: int) -> BlockLayout:
    units = units_of(config)
    return BlockLayout.of(n_sublayers, **units) if units else BlockLayout.full(n_sublayers)
