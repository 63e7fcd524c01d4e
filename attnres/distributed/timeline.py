"""When each rank computed, what was sent and what was held: what `simulate` finds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from attnres.distributed.plan import Copy, PipelinePlan
from attnres.distributed.schedules import Step

Lifetime = Callable[[Copy, int], tuple[float, float]]  # of a copy and a micro-batch: start, end


class Span(NamedTuple):
    """A step on a rank."""

    rank: int
    step: Step
    start_s: float
    end_s: float


class Message(NamedTuple):
    """Sources to the next chunk after a forward, or their gradients to the one before."""

    step: Step  # of the sender
    receiver: int  # a chunk
    n_bytes: int
    start_s: float
    end_s: float  # when it has arrived


@dataclass(frozen=True)
class Timeline:
    """One step of the optimiser, as `simulate` found it."""

    plan: PipelinePlan
    vector_bytes: int
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]

    @property
    def total_s(self) -> float:
        return max(span.end_s for span in self.spans)

    @property
    def idle_share(self) -> float:
        """Share of all ranks' time in which they do not compute."""
        busy = sum(span.end_s - span.start_s for span in self.spans)
        return 1 - busy / (self.total_s * self.plan.n_stages)

    @property
    def bytes_by_hop(self) -> tuple[int, ...]:
        """Sent between each chunk and the next, both ways, by the earlier of the two."""
        total = [0] * (self.plan.n_chunks - 1)
        for message in self.messages:
            total[min(message.step.chunk, message.receiver)] += message.n_bytes
        return tuple(total)

    @property
    def peak_source_bytes(self) -> tuple[int, ...]:
        """Most bytes of sources on each rank at once, those of all micro-batches together.

        Counted are blocks, from their chunk on, and the partial sums that chunks start from, from
        arrival on. What comes when something else is dropped takes its place.
        """
        return self._peaks(self._held)

    @property
    def peak_gradient_bytes(self) -> tuple[int, ...]:
        """Most bytes of gradients that wait on each rank for the home of a kept copy."""
        return self._peaks(self._waiting)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most bytes on each rank at once of sources and of gradients that wait."""
        return self._peaks(self._held, self._waiting)

    def _peaks(self, *lifetimes: Lifetime) -> tuple[int, ...]:
        changes: list[list[tuple[float, int]]] = [[] for _ in range(self.plan.n_stages)]
        for copy in self.plan.copies:
            for microbatch in {span.step.microbatch for span in self.spans}:
                for lifetime in lifetimes:
                    start_s, end_s = lifetime(copy, microbatch)
                    changes[copy.rank] += [(start_s, 1), (end_s, -1)]
        counts = (accumulate((n for _, n in sorted(rank)), initial=0) for rank in changes)
        return tuple(max(count) * self.vector_bytes for count in counts)

    def _held(self, copy: Copy, microbatch: int) -> tuple[float, float]:
        forward = Step("forward", copy.home, microbatch)
        if copy.received:
            start_s = self._given[forward._replace(chunk=copy.home - 1)]
        else:
            start_s = self._spans[forward].start_s
        if copy.backward_end is None:
            return start_s, self._given[forward]
        return start_s, self._spans[Step("backward", copy.backward_end, microbatch)].end_s

    def _waiting(self, copy: Copy, microbatch: int) -> tuple[float, float]:
        if not copy.deposits:
            return 0.0, 0.0
        first, last = (Step("backward", c, microbatch) for c in (copy.deposits[0], copy.home))
        return self._spans[first].end_s, self._spans[last].end_s

    @cached_property
    def _spans(self) -> dict[Step, Span]:
        return {span.step: span for span in self.spans}

    @cached_property
    def _given(self) -> dict[Step, float]:
        """When what a step gives has arrived; at its end where it stays on the rank."""
        ends = {span.step: span.end_s for span in self.spans}
        return ends | {message.step: message.end_s for message in self.messages}
