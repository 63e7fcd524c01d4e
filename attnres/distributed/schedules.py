"""Orders in which ranks run forwards and backwards, as the runners of torch 2.13 do.

| name | runner | first described |
|---|---|---|
| gpipe | `ScheduleGPipe` | arXiv:1811.06965 |
| 1f1b | `Schedule1F1B` | arXiv:1806.03377 |
| interleaved | `ScheduleInterleaved1F1B` | arXiv:2104.04473 |
| looped | `ScheduleLoopedBFS` | arXiv:2211.05953 |
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from attnres.layout import check_count


class Step(NamedTuple):
    """A forward or a backward of one micro-batch through one chunk."""

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


MOST_STEPS = 1_000_000
Order = tuple[Step, ...]


def schedule(name: str, n_stages: int, n_virtual: int, n_microbatches: int) -> tuple[Order, ...]:
    """What each rank runs, in order, by rank.

    Raises:
        ValueError: a count that is no positive integer, no such schedule, several chunks a rank in
            a schedule of one, micro-batches too few for 1f1b, or not in equal rounds.
    """
    check_count("n_stages", n_stages)
    check_count("n_virtual", n_virtual)
    check_count("n_microbatches", n_microbatches)
    n_steps = n_stages * n_virtual * n_microbatches
    if n_steps > MOST_STEPS:
        raise ValueError(
            f"{n_stages} stages of {n_virtual} chunks and n_microbatches={n_microbatches} are "
            f"{n_steps} forwards, more than {MOST_STEPS} that a timeline has place for"
        )
    if name not in SCHEDULES:
        raise ValueError(f"no schedule {name!r}; there are: {', '.join(SCHEDULES)}")
    if n_virtual > 1 and name in ONE_CHUNK:
        raise ValueError(
            f"{name} runs one chunk a rank, got n_virtual={n_virtual}; "
            "interleaved and looped run more"
        )
    order = SCHEDULES[name]
    return tuple(
        tuple(order(rank, n_stages, n_virtual, n_microbatches)) for rank in range(n_stages)
    )


def _gpipe(rank: int, n_stages: int, n_virtual: int, n_microbatches: int) -> Iterator[Step]:
    yield from (Step("forward", rank, m) for m in range(n_microbatches))
    yield from (Step("backward", rank, m) for m in range(n_microbatches))


def _one_f_one_b(rank: int, n_stages: int, n_virtual: int, n_microbatches: int) -> Iterator[Step]:
    if n_microbatches < n_stages:
        raise ValueError(
            f"1f1b needs as many micro-batches as stages, {n_stages}, or more, got {n_microbatches}"
        )
    forwards = [Step("forward", rank, m) for m in range(n_microbatches)]
    backwards = [Step("backward", rank, m) for m in range(n_microbatches)]
    return _alternate(forwards, backwards, n_ahead=n_stages - 1 - rank)


def _interleaved(rank: int, n_stages: int, n_virtual: int, n_microbatches: int) -> Iterator[Step]:
    """A round of micro-batches goes through all chunks of a rank before the next one does."""
    n_rounds = max(1, n_microbatches // n_stages)
    if n_microbatches % n_rounds:
        raise ValueError(
            f"interleaved runs {n_microbatches} micro-batches on {n_stages} stages in {n_rounds} "
            f"rounds, so their number must be divisible by {n_rounds}"
        )
    per_round = n_microbatches // n_rounds
    chunks = range(rank, n_stages * n_virtual, n_stages)
    rounds = [range(first, first + per_round) for first in range(0, n_microbatches, per_round)]
    forwards = [Step("forward", c, m) for ms in rounds for c in chunks for m in ms]
    backwards = [Step("backward", c, m) for ms in rounds for c in reversed(chunks) for m in ms]
    n_ahead = (n_virtual - 1) * per_round + 2 * (n_stages - 1 - rank)
    return _alternate(forwards, backwards, n_ahead)


def _looped(rank: int, n_stages: int, n_virtual: int, n_microbatches: int) -> Iterator[Step]:
    """All micro-batches go through a chunk before the rank's next chunk runs."""
    chunks = range(rank, n_stages * n_virtual, n_stages)
    microbatches = range(n_microbatches)
    yield from (Step("forward", c, m) for c in chunks for m in microbatches)
    yield from (Step("backward", c, m) for c in reversed(chunks) for m in reversed(microbatches))


def _alternate(forwards: list[Step], backwards: list[Step], n_ahead: int) -> Iterator[Step]:
    """Some forwards ahead, then one forward and one backward in turn, then what remains."""
    n_ahead = min(n_ahead, len(forwards))
    yield from forwards[:n_ahead]
    for forward, backward in zip(forwards[n_ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - n_ahead :]


SCHEDULES: dict[str, Callable[[int, int, int, int], Iterator[Step]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "looped": _looped,
}
ONE_CHUNK = ("gpipe", "1f1b")  # the runners that take one chunk a rank
