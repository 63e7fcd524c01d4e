"""A pipeline's timeline under a model of compute and of the links.

A forward takes its sublayers' time, a backward a multiple. From each rank to each other there is a
link, which carries one message at a time in the order of sending, while the rank computes on. What
the embedding, the head and the optimiser take is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from attnres.distributed.plan import PipelinePlan
from attnres.distributed.schedules import Order, Step
from attnres.distributed.timeline import Message, Span, Timeline
from attnres.layout import check_count


@dataclass(frozen=True, kw_only=True)
class Machine:
    """ValueError where a time or a speed is not positive, or a latency is negative."""

    sublayer_s: float = 1.0  # forward of one sublayer and one micro-batch
    backward_ratio: float = 2.0  # backward over forward
    bytes_per_s: float = inf  # of a link
    latency_s: float = 0.0  # of a message

    def __post_init__(self):
        for name in ("sublayer_s", "backward_ratio", "bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("sublayer_s", "backward_ratio", "latency_s"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        if self.latency_s < 0:
            raise ValueError(f"latency_s must not be negative, got {self.latency_s}")


def simulate(
    plan: PipelinePlan,
    orders: Sequence[Order],
    vector_bytes: int,
    machine: Machine | None = None,
) -> Timeline:
    """Run a plan on a model of the machine.

    Args:
        plan: what is sent and held.
        orders: what each rank runs, by rank, as `schedule` gives it.
        vector_bytes: of one source of one micro-batch: tokens times width times bytes a number.
        machine: None takes 1 s a sublayer, 2 s its backward, and messages no time.

    Raises:
        ValueError: a size that is no positive integer, orders that are not this plan's, or in which
            ranks wait for each other.
    """
    check_count("vector_bytes", vector_bytes)
    _check_orders(plan, orders)
    run = _Run(plan, orders, vector_bytes, machine or Machine())
    while any(run.advance(rank) for rank in range(plan.n_stages)):
        pass
    run.check_done()
    return Timeline(plan, vector_bytes, tuple(run.spans), tuple(run.messages))


def _check_orders(plan: PipelinePlan, orders: Sequence[Order]) -> None:
    if len(orders) != plan.n_stages:
        raise ValueError(f"{plan.n_stages} ranks need as many orders, got {len(orders)}")
    microbatches = sorted({step.microbatch for step in orders[0]})
    for rank, order in enumerate(orders):
        chunks = [chunk.index for chunk in plan.chunks if chunk.rank == rank]
        expected = [Step("forward", c, m) for c in chunks for m in microbatches]
        expected += [step._replace(kind="backward") for step in expected]
        if sorted(order) != sorted(expected):
            raise ValueError(
                f"rank {rank} must run a forward and a backward of every micro-batch of chunks "
                f"{chunks}, each once"
            )


class _Run:
    """A simulation that is under way."""

    def __init__(
        self, plan: PipelinePlan, orders: Sequence[Order], vector_bytes: int, machine: Machine
    ):
        self.plan, self.machine, self.vector_bytes = plan, machine, vector_bytes
        self.to_come = [list(reversed(order)) for order in orders]
        self.ready = {step: 0.0 for step in orders[0] if step[:2] == ("forward", 0)}
        self.rank_free = [0.0] * plan.n_stages
        self.link_free: dict[tuple[int, int], float] = {}
        self.spans: list[Span] = []
        self.messages: list[Message] = []

    def advance(self, rank: int) -> bool:
        """Run what can be run on a rank; whether anything could."""
        to_come, n_before = self.to_come[rank], len(self.spans)
        while to_come and to_come[-1] in self.ready:
            self._compute(rank, to_come.pop())
        return len(self.spans) > n_before

    def check_done(self) -> None:
        waiting = [
            f"rank {rank} at {steps[-1]}" for rank, steps in enumerate(self.to_come) if steps
        ]
        if waiting:
            raise ValueError(f"orders wait for each other: {'; '.join(waiting)}")

    def _compute(self, rank: int, step: Step) -> None:
        chunk = self.plan.chunks[step.chunk]
        ratio = 1.0 if step.kind == "forward" else self.machine.backward_ratio
        start_s = max(self.rank_free[rank], self.ready[step])
        end_s = start_s + chunk.n_sublayers * self.machine.sublayer_s * ratio
        self.rank_free[rank] = end_s
        self.spans.append(Span(rank, step, start_s, end_s))
        self._give(step, end_s)

    def _give(self, step: Step, end_s: float) -> None:
        """Make the step ready that waits for this one."""
        is_forward = step.kind == "forward"
        receiver = step.chunk + (1 if is_forward else -1)
        if is_forward and receiver == self.plan.n_chunks:
            self.ready[step._replace(kind="backward")] = end_s  # the loss
        elif receiver >= 0:
            self.ready[step._replace(chunk=receiver)] = self._send(step, receiver, end_s)

    def _send(self, step: Step, receiver: int, end_s: float) -> float:
        """When it has arrived."""
        link = self.plan.chunks[step.chunk].rank, self.plan.chunks[receiver].rank
        if link[0] == link[1]:
            return end_s
        n_bytes = self.plan.hops[min(step.chunk, receiver)].n_vectors * self.vector_bytes
        start_s = max(end_s, self.link_free.get(link, 0.0))
        self.link_free[link] = start_s + n_bytes / self.machine.bytes_per_s
        arrival_s = self.link_free[link] + self.machine.latency_s
        self.messages.append(Message(step, receiver, n_bytes, start_s, arrival_s))
        return arrival_s
