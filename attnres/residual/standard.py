"""The ordinary residual: one running sum in which all depths weigh 1 (arXiv:2603.15031, eq. 1)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnres.layout import check_count
from attnres.residual.base import Output, Residual, Start, Traffic, check_depth, parts_of
from attnres.residual.coordinates import row_of_read


class RunningSum(Residual[Tensor]):
    """h = h + f(h); the state is the sum itself, BTD. Abstract: a method says how it starts."""

    def __init__(self, n_sublayers: int):
        super().__init__()
        check_count("n_sublayers", n_sublayers)
        self.n_sublayers = n_sublayers

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        check_depth(depth, self.n_sublayers - 1)
        return state, state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        check_depth(depth, self.n_sublayers - 1)
        for part_BTD in parts_of(out_BTD, state, depth):
            state = state + part_BTD
        return state

    def finish(self, state: Tensor) -> Tensor:
        return state

    def reset_parameters(self) -> None:
        """There are none."""

    def stream(self, state: Tensor) -> Tensor:
        return state

    def mixing(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        return row_of_read(self, state, depth, state.shape[-1] - self.n_sublayers - 1)

    def traffic(self, depth: int) -> Traffic:
        """arXiv:2603.15031, table 1: 3."""
        check_depth(depth, self.n_sublayers - 1)
        return Traffic(n_read=2, n_written=1)


class Standard(RunningSum):
    """The sum starts as the embedding."""

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD

    @property
    def starts_as(self) -> Start:
        return "standard"


@dataclass(frozen=True, kw_only=True)
class StandardConfig:
    """The standard residual has no settings."""

    def build(self, dim: int, n_sublayers: int) -> Standard:
        return Standard(n_sublayers)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {}
