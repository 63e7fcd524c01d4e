"""A schedule cut into the steps that a mistake can be in; each wrong schedule replaces steps.

    sizes -> finished, partial -> sources -> query -> attend -> finish

The right steps are written from lists of all outputs, not by a running state as in
`attnres.residual`, so that the kit and the library can disagree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnres.conformance import op_steps


class Place(NamedTuple):
    """Where a reader stands: what was written and read before it. All tensors are BTD."""

    embed: Tensor
    outputs: Sequence[Tensor]
    reads: Sequence[Tensor]
    sizes: Sequence[int]  # sublayers of each block that closes; what remains stays unfinished

    @property
    def depth(self) -> int:
        return len(self.outputs)

    def blocks(self) -> tuple[list[Sequence[Tensor]], Sequence[Tensor]]:
        """Outputs of each finished block, and of the unfinished one."""
        finished, start = [], 0
        for size in self.sizes:
            if start + size > self.depth:
                break
            finished.append(self.outputs[start : start + size])
            start += size
        return finished, self.outputs[start:]


def add(outputs: Sequence[Tensor]) -> Tensor:
    """In order, in the dtype of the outputs."""
    total = outputs[0]
    for output in outputs[1:]:
        total = total + output
    return total


def right_sizes(n_sublayers: int, size: int) -> list[int]:
    return [size] * (n_sublayers // size)


def right_finished(place: Place) -> list[Tensor]:
    return [add(block) for block in place.blocks()[0]]


def right_partial(place: Place) -> list[Tensor]:
    """The sum of the unfinished block, or nothing where none has begun."""
    outputs = place.blocks()[1]
    return [add(outputs)] if outputs else []


def right_sources(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
    return [place.embed, *finished, *partial]


def _query(depth: int) -> int:
    return depth


class Reader(NamedTuple):
    """Mixes sources by the query of one depth."""

    attend: Callable[..., Tensor]
    queries: Tensor
    key_weights: Tensor
    eps: float

    def __call__(self, sources: Sequence[Tensor], depth: int) -> Tensor:
        return self.attend(self.queries[depth], sources, self.key_weights[depth], self.eps)


class Last(NamedTuple):
    """What the output read has at hand."""

    place: Place
    sources: list[Tensor]
    finished: list[Tensor]
    reader: Reader
    query: Callable[[int], int]


def _finish(last: Last) -> Tensor:
    return last.reader(last.sources, last.query(last.place.depth))


@dataclass(frozen=True)
class Schedule:
    """Block AttnRes over given outputs; without changes the right one.

    f(embed, outputs, queries, key_weights, sublayers_per_block, eps) -> the reads, stacked
    """

    sizes: Callable[[int, int], list[int]] = right_sizes
    finished: Callable[[Place], list[Tensor]] = right_finished
    partial: Callable[[Place], list[Tensor]] = right_partial
    sources: Callable[[Place, list[Tensor], list[Tensor]], list[Tensor]] = right_sources
    query: Callable[[int], int] = _query
    attend: Callable[..., Tensor] = op_steps.RIGHT
    finish: Callable[[Last], Tensor] = _finish

    def __call__(
        self,
        embed: Tensor,
        outputs: Sequence[Tensor],
        queries: Tensor,
        key_weights: Tensor,
        sublayers_per_block: int,
        eps: float,
    ) -> Tensor:
        sizes = self.sizes(len(outputs), sublayers_per_block)
        reader = Reader(self.attend, queries, key_weights, eps)
        reads: list[Tensor] = []
        for depth in range(len(outputs) + 1):
            place = Place(embed, outputs[:depth], reads, sizes)
            finished = self.finished(place)
            sources = self.sources(place, finished, self.partial(place))
            if depth < len(outputs):
                reads.append(reader(sources, self.query(depth)))
            else:
                reads.append(self.finish(Last(place, sources, finished, reader, self.query)))
        return torch.stack(reads)

    def full(
        self,
        embed: Tensor,
        outputs: Sequence[Tensor],
        queries: Tensor,
        key_weights: Tensor,
        eps: float,
    ) -> Tensor:
        """Blocks of one sublayer."""
        return self(embed, outputs, queries, key_weights, 1, eps)


RIGHT = Schedule()
