"""Wrong steps of a schedule, one a mistake; `schedule_mistakes.py` says what each is."""

import torch
from torch import Tensor
from torch.nn import functional as F

from attnres.conformance.schedule_steps import (
    Last,
    Place,
    add,
    right_finished,
    right_partial,
    right_sizes,
    right_sources,
)


def doubled_size(n_sublayers: int, size: int) -> list[int]:
    return right_sizes(n_sublayers, 2 * size)


def halved_size(n_sublayers: int, size: int) -> list[int]:
    return right_sizes(n_sublayers, (size + 1) // 2)


def all_of_one(n_sublayers: int, size: int) -> list[int]:
    return [1] * n_sublayers


def closed_late(n_sublayers: int, size: int) -> list[int]:
    return [size + 1, *right_sizes(n_sublayers, size)]


def closed_early(n_sublayers: int, size: int) -> list[int]:
    return [max(size - 1, 1), *right_sizes(n_sublayers, size)]


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
    blocks = right_finished(place)
    return [place.embed + blocks[0], *blocks[1:]] if blocks else []


def partial_with_embedding(place: Place) -> list[Tensor]:
    partial = right_partial(place)
    is_first = not place.blocks()[0]
    return [place.embed + x for x in partial] if is_first else partial


def zeros_after_boundary(place: Place) -> list[Tensor]:
    begun = right_partial(place)
    return begun or [torch.zeros_like(place.embed)] * (place.depth > 0)


def zeros_from_start(place: Place) -> list[Tensor]:
    return right_partial(place) or [torch.zeros_like(place.embed)]


def sealed_again(place: Place) -> list[Tensor]:
    return right_partial(place) or right_finished(place)[-1:]


def nothing(place: Place) -> list[Tensor]:
    return []


def means(place: Place) -> list[Tensor]:
    return [add(block) / len(block) for block in place.blocks()[0]]


def detached(place: Place) -> list[Tensor]:
    return [block.detach() for block in right_finished(place)]


def normed_outputs(place: Place) -> list[Tensor]:
    return [add([_rms(output) for output in block]) for block in place.blocks()[0]]


def without_embedding(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
    return [*finished, *partial] or [place.embed]


def with_layer_inputs(place: Place, finished: list[Tensor], partial: list[Tensor]) -> list[Tensor]:
    return [*right_sources(place, finished, partial), *place.reads[2::2]]


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
