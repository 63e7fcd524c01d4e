"""The timeline against closed forms, and its messages and memory against the plan."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
from random_plans import KEEP, random_plans

from attnres import BlockLayout
from attnres.distributed import Machine, plan_pipeline, schedule, simulate
from attnres.distributed.schedules import Step

LAYOUT = BlockLayout.of(8, n_blocks=4)


def timeline(name, n_stages, n_virtual, n_microbatches, keep: Any = "all", **machine):
    plan = plan_pipeline(LAYOUT, n_stages, n_virtual, keep=keep)
    orders = schedule(name, n_stages, n_virtual, n_microbatches)
    return simulate(plan, orders, 10, Machine(**machine))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "looped"])
@pytest.mark.parametrize("n_microbatches", [4, 8, 16])
def test_idle_share_of_one_chunk_a_rank(name, n_microbatches):
    """(P - 1) / (m + P - 1), as arXiv:1811.06965 has it for GPipe."""
    found = timeline(name, 4, 1, n_microbatches)
    assert found.idle_share == pytest.approx(3 / (n_microbatches + 3))
    assert found.total_s == pytest.approx(6 * (n_microbatches + 3))  # 2 sublayers, 1 s + 2 s each


@pytest.mark.parametrize("name", ["interleaved", "looped"])
@pytest.mark.parametrize(("n_stages", "n_virtual"), [(4, 2), (2, 2), (2, 4)])
def test_several_chunks_a_rank_divide_the_idle_time(name, n_stages, n_virtual):
    """(P - 1) / (V m + P - 1), from section 2.2 of arXiv:2104.04473."""
    found = timeline(name, n_stages, n_virtual, 8)
    expected = (n_stages - 1) / (8 * n_virtual + n_stages - 1)
    assert found.idle_share == pytest.approx(expected)


def test_one_rank_is_never_idle_and_sends_nothing():
    found = timeline("interleaved", 1, 2, 3)
    assert (found.idle_share, found.messages, found.total_s) == (0, (), 3 * 8 * 3)


def every_timeline(n_layouts):
    for plan in random_plans(n_layouts):
        for name in ("interleaved", "looped"):
            orders = schedule(name, plan.n_stages, plan.n_virtual, plan.n_stages * 2)
            machine = Machine(bytes_per_s=3.0, latency_s=0.25)
            yield plan, orders, simulate(plan, orders, 2, machine)


def test_bytes_are_the_plan_s_both_ways_for_every_micro_batch():
    for plan, _, found in every_timeline(12):
        expected = [2 * 2 * 2 * plan.n_stages * hop.n_vectors for hop in plan.wire]
        assert [*found.bytes_by_hop] == (expected or [0] * len(plan.hops))
        assert sum(message.n_bytes for message in found.messages) == sum(expected)


def test_steps_keep_their_order_and_wait_for_what_they_need():
    for plan, orders, found in every_timeline(12):
        spans = {span.step: span for span in found.spans}
        arrivals = {message.step: message.end_s for message in found.messages}
        for rank, order in enumerate(orders):
            times = [time for step in order for time in spans[step][2:]]
            assert times == sorted(times)
            assert [span.step for span in found.spans if span.rank == rank] == [*order]
        for step, span in spans.items():
            before = needed_by(step, plan.n_chunks)
            if before is not None:
                assert span.start_s >= arrivals.get(before, spans[before].end_s)


def needed_by(step, n_chunks):
    if step.kind == "forward":
        return step._replace(chunk=step.chunk - 1) if step.chunk else None
    if step.chunk == n_chunks - 1:
        return step._replace(kind="forward")
    return step._replace(chunk=step.chunk + 1)


def test_a_link_carries_one_message_at_a_time():
    for plan, _, found in every_timeline(12):
        by_link: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for message in found.messages:
            link = plan.chunks[message.step.chunk].rank, plan.chunks[message.receiver].rank
            sent_s = message.start_s + message.n_bytes / 3.0
            assert message.end_s == pytest.approx(sent_s + 0.25)
            by_link.setdefault(link, []).append((message.start_s, sent_s))
        for sent in by_link.values():
            times = [time for pair in sorted(sent) for time in pair]
            assert times == pytest.approx(sorted(times))


def test_a_message_takes_its_bytes_and_its_latency():
    plan = plan_pipeline(BlockLayout.full(2), 2)
    found = simulate(plan, schedule("gpipe", 2, 1, 1), 12, Machine(bytes_per_s=8, latency_s=0.5))
    assert [message[2:] for message in found.messages] == [(24, 1, 4.5), (24, 7.5, 11)]
    assert (found.total_s, found.bytes_by_hop) == (13, (48,))
    assert found.idle_share == pytest.approx(1 - 6 / 26)


def instants(found):
    """At the end of each step or message: sources held, and gradients that wait, by rank."""
    spans = {span.step: span for span in found.spans}
    arrivals = {message.step: message.end_s for message in found.messages}
    microbatches = {step.microbatch for step in spans}

    def end_s(kind, chunk, m):
        return spans[Step(kind, chunk, m)].end_s

    for now in {time for span in spans.values() for time in span[2:]} | {*arrivals.values()}:
        held, waiting = Counter(), Counter()
        for copy, m in product(found.plan.copies, microbatches):
            made, before = (Step("forward", copy.home - i, m) for i in range(2))
            given = {step: arrivals.get(step, spans[step].end_s) for step in (made, before)
                     if step in spans}  # fmt: skip
            start = given[before] if copy.received else spans[made].start_s
            reader = copy.backward_end
            end = given[made] if reader is None else end_s("backward", reader, m)
            held[copy.rank] += start <= now < end
            later = [end_s("backward", reader, m) for reader in copy.readers if reader != copy.home]
            if later:
                waiting[copy.rank] += min(later) <= now < end_s("backward", copy.home, m)
        yield held, waiting


def test_peaks_are_those_seen_at_each_instant():
    layout, machine = BlockLayout((3, 1, 4, 2, 3)), Machine(bytes_per_s=3.0, latency_s=0.25)
    for keep, name in product(KEEP, ("interleaved", "looped")):
        plan = plan_pipeline(layout, 3, 2, (2, 4, 5, 8, 12), keep)
        found = simulate(plan, schedule(name, 3, 2, 4), 2, machine)
        sources, gradients, both = Counter(), Counter(), Counter()
        for held, waiting in instants(found):
            sources |= held
            gradients |= waiting
            both |= held + waiting
        for peaks, counted in [
            (found.peak_source_bytes, sources),
            (found.peak_gradient_bytes, gradients),
            (found.peak_bytes, both),
        ]:
            assert peaks == tuple(2 * counted[rank] for rank in range(3))


def test_1f1b_holds_fewer_micro_batches_than_gpipe():
    """All 8 with GPipe; with 1F1B P - rank of them, and of one more what has come by then."""
    held = plan_pipeline(LAYOUT, 4).held
    assert held == (1, 2, 3, 5)
    sent_on = (1, 1, 1, 0)  # a block that is finished, sent and not read here
    gpipe = timeline("gpipe", 4, 1, 8).peak_source_bytes
    assert gpipe == tuple(10 * (8 * n + extra) for n, extra in zip(held, sent_on, strict=True))
    more = (1, 2, 3, 4)
    expected = tuple(10 * ((4 - rank) * held[rank] + more[rank]) for rank in range(4))
    assert timeline("1f1b", 4, 1, 8).peak_source_bytes == expected


def test_kept_sources_take_less_and_their_gradients_wait():
    found = {keep: timeline("interleaved", 4, 2, 8, keep) for keep in KEEP}
    most = {keep: max(each.peak_source_bytes) for keep, each in found.items()}
    assert most["all"] < most["nothing"]
    assert most["received"] < most["nothing"]
    waiting = {keep: max(each.peak_gradient_bytes) for keep, each in found.items()}
    assert waiting["nothing"] == 0
    assert waiting["all"] > 0
    assert found["nothing"].total_s == found["all"].total_s  # messages take no time here


def test_on_a_slow_link_what_is_kept_saves_time():
    total = [timeline("interleaved", 4, 2, 8, keep, bytes_per_s=8.0).total_s for keep in KEEP]
    assert total[0] > total[1] > total[2]


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"sublayer_s": 0.0}, "sublayer_s must be positive, got 0.0"),
        ({"bytes_per_s": float("nan")}, "bytes_per_s must be positive, got nan"),
        ({"backward_ratio": float("inf")}, "backward_ratio must be finite, got inf"),
        ({"latency_s": -1.0}, "latency_s must not be negative, got -1.0"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(machine, words):
    with pytest.raises(ValueError, match=words):
        Machine(**machine)


def test_orders_that_do_not_fit_are_refused():
    plan = plan_pipeline(LAYOUT, 2)
    orders = schedule("gpipe", 2, 1, 2)
    with pytest.raises(ValueError, match="2 ranks need as many orders, got 1"):
        simulate(plan, orders[:1], 1)
    with pytest.raises(ValueError, match=r"wait for each other: rank 0 .*; rank 1 at"):
        simulate(plan, [tuple(reversed(order)) for order in orders], 1)
    for wrong in (orders[::-1], [orders[0], orders[1][:2]], [orders[0], orders[1] * 2]):
        with pytest.raises(ValueError, match=r"rank \d must run .* of chunks \[\d\], each once"):
            simulate(plan, wrong, 1)
    with pytest.raises(ValueError, match="vector_bytes must be a positive integer, got 0"):
        simulate(plan, orders, 0)
