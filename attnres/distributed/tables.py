"""A pipeline as tables of words, one column for each policy of what ranks keep."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from attnres.cost.tables import Table
from attnres.distributed.plan import Hop, Keep, PipelinePlan
from attnres.distributed.timeline import Timeline

KEEP_IN_WORDS: dict[Keep, str] = {
    "nothing": "nothing kept",
    "received": "what came is kept",
    "all": "own blocks too",
}
NOTHING = "\N{EN DASH}"


def hop_table(plans: Mapping[Keep, PipelinePlan]) -> Table:
    """What each chunk runs, finishes and is sent."""
    plan = next(iter(plans.values()))
    rows = []
    for chunk in plan.chunks:
        given = [_given(each.hops[chunk.index - 1]) for each in plans.values()]
        first = ["the embedding"] * len(plans)
        rows.append(
            (
                str(chunk.index),
                str(chunk.rank),
                f"{chunk.start} to {chunk.stop - 1}" if chunk.n_sublayers > 1 else str(chunk.start),
                _runs(chunk.made) or NOTHING,
                *(given if chunk.index else first),
            )
        )
    columns = ("chunk", "rank", "sublayers", "finishes", *(KEEP_IN_WORDS[keep] for keep in plans))
    title = f"{plan.n_stages} stages with {plan.n_virtual} chunks each: what each chunk is sent"
    note = "the backward sends a gradient of each back; p is the partial sum of an unfinished block"
    return Table(title, columns, rows, note)


def step_table(timelines: Mapping[Keep, Timeline], schedule: str) -> Table:
    """What a step of the optimiser sends, takes and holds."""
    found = list(timelines.values())
    plan = found[0].plan
    n_microbatches = len({span.step.microbatch for span in found[0].spans})
    figures: list[tuple[str, Callable[[Timeline], str]]] = [
        ("vectors sent a token, forward", lambda t: str(t.plan.n_sent)),
        ("blocks of these but the embedding", lambda t: str(sum(t.plan.blocks_sent()))),
        ("vectors of the largest hop", lambda t: str(t.plan.peak_sent)),
        ("sent in a step, both ways", lambda t: _gb(sum(t.bytes_by_hop))),
        ("time of a step", lambda t: f"{t.total_s:.4g} s"),
        ("idle share", lambda t: f"{t.idle_share:.2%}"),
        ("most sources held on a rank", lambda t: _gb(max(t.peak_source_bytes))),
        ("most gradients waiting on one", lambda t: _gb(max(t.peak_gradient_bytes))),
        ("most of both at once", lambda t: _gb(max(t.peak_bytes))),
    ]
    rows = [(name, *map(of, found)) for name, of in figures]
    columns = ("", *(KEEP_IN_WORDS[keep] for keep in timelines))
    title = f"A step of {n_microbatches} micro-batches, {schedule}, simulated"
    note = f"the standard residual sends one vector a hop, {len(plan.wire)}; GB are 10^9 bytes"
    return Table(title, columns, rows, note)


def _given(hop: Hop) -> str:
    parts = [_runs(hop.blocks)] * bool(hop.blocks) + ["p"] * hop.partial
    return " + ".join(parts) or NOTHING


def _runs(blocks: Sequence[int]) -> str:
    """As in: b0 to b2, b4, b5."""
    found = []
    for _, run in groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
        names = [f"b{block}" for _, block in run]
        found += names if len(names) < 3 else [f"{names[0]} to {names[-1]}"]
    return ", ".join(found)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.4g} GB"
