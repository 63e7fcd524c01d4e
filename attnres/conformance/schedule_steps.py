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
from torch.nn import functional as F

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


def _sizes(n_sublayers: int, size: int) -> list[int]:
    return [size] * (n_sublayers // size)


def _finished(place: Place) -> list[Tensor]:
    return [add(block) for block in place.blocks()[0]]


def _partial(place: Place) -> list[Tensor]:
    """The sum of the unfinished block, or nothing where none has begun."""
    outputs = place.blocks()[1]
    return [add(outputs)] if outputs else []


def _sources(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
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

    sizes: Callable[[int, int], list[int]] = _sizes
    finished: Callable[[Place], list[Tensor]] = _finished
    partial: Callable[[Place], list[Tensor]] = _partial
    sources: Callable[[Place, list[Tensor], list[Tensor]], list[Tensor]] = _sources
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


def doubled_size(n_sublayers: int, size: int) -> list[int]:
    return _sizes(n_sublayers, 2 * size)


def halved_size(n_sublayers: int, size: int) -> list[int]:
    return _sizes(n_sublayers, (size + 1) // 2)


def all_of_one(n_sublayers: int, size: int) -> list[int]:
    return [1] * n_sublayers


def closed_late(n_sublayers: int, size: int) -> list[int]:
    return [size + 1, *_sizes(n_sublayers, size)]


def closed_early(n_sublayers: int, size: int) -> list[int]:
    return [max(size - 1, 1), *_sizes(n_sublayers, size)]


def merged_rest(n_sublayers: int, size: int) -> list[int]:
    n_whole, rest = divmod(n_sublayers, size)
    return [size] * (n_whole - (rest > 0))


def cumulative(place: Place) -> list[Tensor]:
    ends = torch.tensor(place.sizes).cumsum(0).tolist()
    return [add([place.embed, *place.outputs[:end]]) for end in ends if end <= place.depth]


def second_stream(place: Place) -> list[Tensor]:
    return [add([place.embed, *place.outputs])]


def never_reset(place: Place) -> list[Tensor]:
    ends = torch.tensor(place.sizes).cumsum(0).tolist()
    return [add(place.outputs[:end]) for end in ends if end <= place.depth]


def partial_never_reset(place: Place) -> list[Tensor]:
    return [add(place.outputs)] if place.blocks()[1] else []


def first_with_embedding(place: Place) -> list[Tensor]:
    blocks = _finished(place)
    return [place.embed + blocks[0], *blocks[1:]] if blocks else []


def partial_with_embedding(place: Place) -> list[Tensor]:
    partial = _partial(place)
    is_first = not place.blocks()[0]
    return [place.embed + x for x in partial] if is_first else partial


def zeros_after_boundary(place: Place) -> list[Tensor]:
    begun = _partial(place)
    return begun or [torch.zeros_like(place.embed)] * (place.depth > 0)


def zeros_from_start(place: Place) -> list[Tensor]:
    return _partial(place) or [torch.zeros_like(place.embed)]


def sealed_again(place: Place) -> list[Tensor]:
    return _partial(place) or _finished(place)[-1:]


def nothing(place: Place) -> list[Tensor]:
    return []


def means(place: Place) -> list[Tensor]:
    return [add(block) / len(block) for block in place.blocks()[0]]


def detached(place: Place) -> list[Tensor]:
    return [block.detach() for block in _finished(place)]


def normed_outputs(place: Place) -> list[Tensor]:
    return [add([_rms(output) for output in block]) for block in place.blocks()[0]]


def without_embedding(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
    return [*finished, *partial] or [place.embed]


def with_layer_inputs(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
    return [*_sources(place, finished, partial), *place.reads[2::2]]


def query_before(depth: int) -> int:
    return max(depth - 1, 0)


def query_of_layer(depth: int) -> int:
    return depth // 2 * 2


def one_query(depth: int) -> int:
    return 1


def no_read(last: Last) -> Tensor:
    return last.sources[-1]


def sum_of_sources(last: Last) -> Tensor:
    return add(last.sources)


def mean_of_sources(last: Last) -> Tensor:
    return add(last.sources) / len(last.sources)


def without_partial(last: Last) -> Tensor:
    depth = last.query(last.place.depth)
    return last.reader([last.place.embed, *last.finished], depth)


def last_query_again(last: Last) -> Tensor:
    return last.reader(last.sources, last.query(last.place.depth - 1))


def normed_first(last: Last) -> Tensor:
    return last.reader([_rms(source) for source in last.sources], last.query(last.place.depth))


def _rms(x_BTD: Tensor) -> Tensor:
    return F.rms_norm(x_BTD, x_BTD.shape[-1:], None, 1e-6)
