"""What methods share that attend over depth beside the ordinary residual stream."""

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor

from attnres.residual.base import Output, Traffic, check_depth, parts_of
from attnres.residual.depth_reader import AttendsOverDepth


class CenteredState(NamedTuple):
    """What has been written so far, and all of it in one sum."""

    blocks: tuple[Tensor, ...]  # the embedding, then one sum per finished block, each BTD
    stream_BTD: Tensor  # the ordinary residual stream
    partial: Tensor | None = None  # the sum of the unfinished block, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)


class AroundStream(AttendsOverDepth[CenteredState]):
    """Abstract: a method says how it reads. Arguments as in `AttnRes`."""

    def start(self, embed_BTD: Tensor) -> CenteredState:
        return CenteredState(blocks=(self.as_source(embed_BTD),), stream_BTD=embed_BTD)

    def read(self, state: CenteredState, depth: int) -> tuple[Tensor, CenteredState]:
        check_depth(depth, self.n_sublayers - 1)
        return self.read_around(state, depth), state

    def write(self, state: CenteredState, depth: int, out_BTD: Output) -> CenteredState:
        blocks, partial = self.written(state, depth, out_BTD)
        stream_BTD = state.stream_BTD
        for part_BTD in parts_of(out_BTD, stream_BTD, depth):
            stream_BTD = stream_BTD + part_BTD
        return CenteredState(blocks, stream_BTD, partial)

    def finish(self, state: CenteredState) -> Tensor:
        return self.read_around(state, self.n_sublayers)

    def stream(self, state: CenteredState) -> Tensor:
        return state.stream_BTD

    def traffic(self, depth: int) -> Traffic:
        """What `AttnRes` moves and, from the second sublayer on, the stream: read, and written."""
        n_read, n_written = super().traffic(depth)
        return Traffic(n_read + (1 if depth else 2), n_written + 1)

    @abstractmethod
    def read_around(self, state: CenteredState, depth: int) -> Tensor:
        """What the reader at `depth` makes of the stream and the sources, BTD."""
