"""What methods share that keep n copies of the stream, mixed at every sublayer."""

from typing import Any, cast

from torch import Tensor, nn

from attnres.residual.arithmetic import wide
from attnres.residual.base import Residual, Start, check_depth
from attnres.residual.coordinates import row_of_read


class Streams(Residual[Tensor]):
    """Abstract: the state is all streams, [..., N, D]; a method says how it reads and writes them.

    It begins with one stream N times, ends with their mean, and starts as the standard residual.
    """

    dim: int
    n_streams: int
    connections: nn.ModuleList  # the weights of each sublayer, by depth

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD.unsqueeze(-2).expand(*embed_BTD.shape[:-1], self.n_streams, -1)

    def finish(self, state: Tensor) -> Tensor:
        return self.stream(state)

    def reset_parameters(self) -> None:
        for connection in self.connections:
            cast(Any, connection).reset_parameters()

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: Tensor) -> Tensor:
        """The mean of the streams."""
        return wide(state).mean(-2).to(state.dtype)

    def mixing(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        return row_of_read(self, state, depth, self.dim)

    def connection(self, depth: int) -> Any:
        check_depth(depth, self.n_sublayers - 1)
        return self.connections[depth]
