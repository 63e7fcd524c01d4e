"""The mixes that a model reads, carried out of it: what `output_hidden_states=True` returns.

They travel with the residual state and leave by a list that belongs to one call, so that nothing is
kept on a module, and layers that are computed again (activation checkpointing) add nothing twice.
"""

from typing import Any, NamedTuple

from torch import Tensor

from attnres.residual import Residual


class TappedState(NamedTuple):
    """A residual state and the mixes that were read on the way to it."""

    state: Any
    mixes: tuple[Tensor, ...]  # one a read, each BTD
    asked_for: list[Tensor]  # by the caller; filled by the output read


class Tapped:
    """The contract of a residual, over states that carry the mixes."""

    def __init__(self, residual: Residual, asked_for: list[Tensor]):
        self.residual = residual
        self.asked_for = asked_for

    def start(self, embed_BTD: Tensor) -> TappedState:
        return TappedState(self.residual.start(embed_BTD), (), self.asked_for)

    def read(self, tapped: TappedState, depth: int) -> tuple[Tensor, TappedState]:
        h_BTD, state = self.residual.read(tapped.state, depth)
        return h_BTD, tapped._replace(state=state, mixes=(*tapped.mixes, h_BTD))

    def write(self, tapped: TappedState, depth: int, out_BTD: Any) -> TappedState:
        return tapped._replace(state=self.residual.write(tapped.state, depth, out_BTD))

    def finish(self, tapped: TappedState) -> Tensor:
        h_BTD = self.residual.finish(tapped.state)
        self.asked_for.extend((*tapped.mixes, h_BTD))
        return h_BTD


def chosen(mixes: list[Tensor], asked: bool | int | list[int]) -> tuple[Tensor | None, ...]:
    """All mixes, or those of one or several indices and None for the others."""
    if asked is True:
        return tuple(mixes)
    indices = [asked] if isinstance(asked, int) else asked
    places = {index % len(mixes) for index in indices if -len(mixes) <= index < len(mixes)}
    return tuple(mix if place in places else None for place, mix in enumerate(mixes))
