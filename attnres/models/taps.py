"""What each read of a model finds and gives, carried out of it.

    found: list[Tap] = []
    model(input_ids, taps=found)

The taps travel with the residual state and leave by a list that belongs to one call, so that
nothing is kept on a module, and layers that are computed again (activation checkpointing) add
nothing twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.models.families import family_of
from attnres.residual import Mix, Residual, Ways
from attnres.residual.base import through


class Tap(NamedTuple):
    """One read: of a sublayer, by depth, or the last, before the final norm."""

    stream_BTD: Tensor | None  # the running sum, or the partial sum; None where there is no such
    mix_BTD: Tensor  # what was read, before any norm; of several ways that of the values


class TappedState(NamedTuple):
    """A residual state and the reads on the way to it."""

    state: Any
    taps: tuple[Tap, ...]
    asked_for: list[Tap]  # by the caller; filled by the output read


class Tapped:
    """The contract of a residual, over states that carry the taps."""

    def __init__(self, residual: Residual, asked_for: list[Tap]):
        self.residual = residual
        self.asked_for = asked_for

    def start(self, embed_BTD: Tensor) -> TappedState:
        return TappedState(self.residual.start(embed_BTD), (), self.asked_for)

    def read(self, tapped: TappedState, depth: int) -> tuple[Mix, TappedState]:
        stream_BTD = self.stream(tapped.state)
        mix, state = self.residual.read(tapped.state, depth)
        h_BTD = mix.value_BTD if isinstance(mix, Ways) else mix
        taps = (*tapped.taps, Tap(stream_BTD, h_BTD))
        return mix, tapped._replace(state=state, taps=taps)

    def read_normed(
        self, tapped: TappedState, depth: int, norm: Callable[[Tensor], Tensor]
    ) -> tuple[Mix, TappedState]:
        mix, tapped = self.read(tapped, depth)
        return through(mix, norm), tapped

    def write(self, tapped: TappedState, depth: int, out_BTD: Any) -> TappedState:
        return tapped._replace(state=self.residual.write(tapped.state, depth, out_BTD))

    def finish(self, tapped: TappedState) -> Tensor:
        h_BTD = self.residual.finish(tapped.state)
        self.asked_for.extend((*tapped.taps, Tap(self.stream(tapped.state), h_BTD)))
        return h_BTD

    def stream(self, state: Any) -> Tensor | None:
        try:
            return self.residual.stream(state)
        except NotImplementedError:
            return None


def normed(model: Any, taps: list[Tap]) -> list[tuple[Tensor, ...]]:
    """The mix of each tap after each norm that reads it, as the sublayers get it; BTD each.

    None for a sublayer that reads the mix itself, two where attention and MLP have their own norm.
    """
    *norms, (final_norm,) = family_of(model.config.text_config).norms(model.base_model)
    found = [
        tuple(norm(tap.mix_BTD) for norm in of_one)
        for of_one, tap in zip(norms, taps[:-1], strict=True)
    ]
    own = type(final_norm).__bases__[1]  # without the output read in front of it
    return [*found, (own.forward(final_norm, taps[-1].mix_BTD),)]


@torch.no_grad()
def weights_by_depth(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """The depth weights of every read, each SBT; entry L is the output read.

    Of two models with one layout, as one before and after quantisation, they can be compared.

    Raises:
        NotImplementedError: a residual method without depth weights.
    """
    residual, found = model.residual, []
    read, finish = residual.read, residual.finish

    def weighed_read(state: Any, depth: int) -> tuple[Tensor, Any]:
        found.append(residual.weights(state, depth))
        return read(state, depth)

    def weighed_finish(state: Any) -> Tensor:
        found.append(residual.weights(state, residual.n_sublayers))
        return finish(state)

    residual.read, residual.finish = weighed_read, weighed_finish
    try:
        model(input_ids=tokens_BT, use_cache=False)
    finally:
        del residual.read, residual.finish
    return found


def chosen(taps: list[Tap], asked: bool | int | list[int]) -> tuple[Tensor | None, ...]:
    """All mixes, or those of one or several indices and None for the others."""
    mixes = [tap.mix_BTD for tap in taps]
    if asked is True:
        return tuple(mixes)
    indices = [asked] if isinstance(asked, int) else asked
    places = {index % len(mixes) for index in indices if -len(mixes) <= index < len(mixes)}
    return tuple(mix if place in places else None for place, mix in enumerate(mixes))
