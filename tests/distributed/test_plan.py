"""The paper's totals and its figure 3, and what must hold for any layout and any cuts."""

from collections import Counter
from itertools import pairwise

import pytest
from random_plans import KEEP, random_plans

from attnres import BlockLayout
from attnres.cost import messages
from attnres.distributed import PipelinePlan, cut, even_cuts, plan_pipeline


def as_the_paper_counts(n_stages, n_virtual, blocks_per_chunk=1):
    layout = BlockLayout.full(n_stages * n_virtual * blocks_per_chunk)
    return {
        keep: plan_pipeline(layout, n_stages, n_virtual, keep=keep).blocks_sent() for keep in KEEP
    }


@pytest.mark.parametrize(
    ("n_stages", "n_virtual", "totals"),
    [(4, 2, (28, 22, 18)), (8, 4, (496, 220, 196)), (16, 4, (2016, 888, 840))],
)
def test_totals_are_the_paper_s_and_own_blocks_are_saved_besides(n_stages, n_virtual, totals):
    found = as_the_paper_counts(n_stages, n_virtual)
    assert tuple(sum(found[keep]) for keep in KEEP) == totals
    n_own = n_stages * (n_virtual - 1)
    assert totals[1] - totals[2] == n_own


@pytest.mark.parametrize("per_chunk", [1, 3])
@pytest.mark.parametrize(("n_stages", "n_virtual"), [(2, 1), (2, 3), (3, 2), (5, 3)])
def test_totals_are_those_of_the_closed_form(n_stages, n_virtual, per_chunk):
    found = as_the_paper_counts(n_stages, n_virtual, per_chunk)
    everything, cached = messages(n_stages, n_virtual, per_chunk)
    assert (sum(found["nothing"]), sum(found["received"])) == (everything, cached)


def test_the_largest_hop_grows_with_ranks_and_not_with_chunks():
    for n_virtual in (2, 3, 4):
        found = as_the_paper_counts(4, n_virtual)
        assert max(found["nothing"]) == 4 * n_virtual - 1
        assert max(found["received"]) == 4
        assert max(found["all"]) == 3


FIGURE_3 = {
    "nothing": "0p 01 01p 012 012p 0123 0123p",
    "received": "0p 01 01p 12 12p 23 23p",
    "all": "0p 01 01p 12 2p 23 3p",
}


def test_figure_3_of_the_paper():
    """P=4, V=2, a block spans two ranks: 6 blocks fewer, and 2 more where own blocks are kept."""
    layout = BlockLayout.of(8, n_blocks=4)
    plans = {keep: plan_pipeline(layout, 4, 2, keep=keep) for keep in KEEP}
    for keep, plan in plans.items():
        short = " ".join("".join(name[-1 if name[0] == "b" else 0] for name in hop.names)
                         for hop in plan.hops)  # fmt: skip
        assert short == FIGURE_3[keep]
    first = [plans["received"].sources(chunk)[:2] for chunk in range(4)]
    assert first == [("b0",), ("b0", "partial"), ("b0", "b1"), ("b0", "b1")]
    assert [chunk.made for chunk in plans["all"].chunks[:4]] == [(0,), (1,), (), (2,)]
    second = [sum(plan.blocks_sent(embedding=True)[3:]) for plan in plans.values()]
    assert second == [14, 8, 6]
    assert second[0] - second[1] == 6


def test_a_partial_sum_crosses_where_a_cut_falls_inside_a_block():
    plan = plan_pipeline(BlockLayout.of(10, sublayers_per_block=4), 2, 2, cuts=(3, 4, 7))
    assert [hop.names for hop in plan.hops] == [("b0", "partial"), ("b1",), ("partial",)]
    assert (plan.n_sent, plan.peak_sent) == (4, 2)


def test_one_rank_sends_nothing():
    plan = plan_pipeline(BlockLayout.full(6), 1, 3, keep="all")
    assert [hop.names for hop in plan.hops] == [(), ()]
    assert (plan.wire, plan.n_sent, plan.peak_sent) == ((), 0, 0)


def run_forward(plan: PipelinePlan) -> list[set[tuple[int | None, int]]]:
    """What is on each rank after a forward that drops each copy when the plan says so."""
    on_rank: list[set[tuple[int | None, int]]] = [set() for _ in range(plan.n_stages)]
    for chunk in plan.chunks:
        here = on_rank[chunk.rank]
        copies = [copy for copy in plan.copies if copy.rank == chunk.rank]
        names = set(plan.hops[chunk.index - 1].names) if chunk.index else set()
        kept = {f"b{block}" for block, _ in here if block is not None}
        assert not kept & names, "sent what the receiver holds"
        here |= {(copy.block, copy.home) for copy in copies if copy.home == chunk.index}
        for depth in range(chunk.start, chunk.stop + (chunk.stop == plan.layout.n_sublayers)):
            seen = {f"b{block}" for block, _ in here if block is not None}
            seen |= {"partial"} if (None, chunk.index) in here or depth > chunk.start else set()
            assert set(plan.layout.source_names(depth)) <= seen, f"reader {depth} lacks a source"
        if chunk.index + 1 < plan.n_chunks:  # what is sent leaves before anything is dropped
            assert set(plan.hops[chunk.index].blocks) <= {block for block, _ in here}
        ended = {(c.block, c.home) for c in copies if c.forward_end == chunk.index}
        assert ended <= here
        here -= ended
    return on_rank


def test_every_reader_finds_its_sources_and_nothing_is_left_after_a_forward():
    for plan in random_plans(150):
        assert run_forward(plan) == [set()] * plan.n_stages


def test_nothing_is_held_longer_than_its_last_use():
    for plan in random_plans(100):
        for copy in plan.copies:
            uses = {chunk.index for chunk in plan.chunks if uses_copy(plan, copy, chunk)}
            assert copy.forward_end == max(uses | {copy.home})
            reads = {c for c in uses if c != copy.home or reads_at_home(plan, copy)}
            assert copy.backward_end == min(reads, default=None)


def uses_copy(plan, copy, chunk):
    """By what chunks see, and the newest copy on their rank: not by what the plan says of it."""
    if chunk.rank != copy.rank or chunk.index < copy.home:
        return False
    same = [c.home for c in plan.copies if (c.block, c.rank) == (copy.block, copy.rank)]
    newest = max(home for home in same if home <= chunk.index)
    if newest != copy.home:
        return False
    return chunk.index == copy.home or (
        copy.block is not None and f"b{copy.block}" in plan.sources(chunk.index)
    )


def reads_at_home(plan, copy):
    if copy.received or copy.block == 0:
        return True
    chunk = plan.chunks[copy.home]
    is_last = chunk.stop == plan.layout.n_sublayers
    depths = range(chunk.start, chunk.stop + is_last)
    return any(f"b{copy.block}" in plan.layout.source_names(depth) for depth in depths)


def test_each_source_is_sent_to_a_rank_once_where_ranks_keep_all():
    for plan in random_plans(100):
        if plan.keep == "all":
            by_block = Counter(
                (n, plan.chunks[hop.receiver].rank) for hop in plan.hops for n in hop.blocks
            )
            assert set(by_block.values()) <= {1}
            made = {(n, chunk.rank) for chunk in plan.chunks for n in chunk.made}
            assert not made & set(by_block)


def test_a_hop_between_ranks_always_carries_what_the_sender_wrote_last():
    for plan in random_plans(100):
        for hop in plan.wire:
            closes = plan.layout.closes_after(plan.chunks[hop.sender].stop - 1)
            assert hop.partial != closes
            if closes:
                assert hop.blocks[-1] == plan.chunks[hop.sender].made[-1]


def run_backward(plan: PipelinePlan) -> Counter:
    """Shares of gradient that reach the maker of each block: one for each chunk that reads it."""
    arrived: Counter = Counter()  # by block and reading chunk
    waiting: dict[tuple[int, int], list[int]] = {}  # by home and block
    sent: dict[str, list[int]] = {}  # by name, for the chunk that is next
    n_hops = 0
    for chunk in reversed(plan.chunks):
        given, sent = sent, {}
        for block in {*range(chunk.n_before), *chunk.made}:
            copy = plan.copy_of(block, chunk.index)
            shares = given.pop(f"b{block}", [])
            if chunk.index in copy.readers:
                shares = [*shares, chunk.index]
            if chunk.index != copy.home:
                assert chunk.index in copy.deposits
                waiting.setdefault((copy.home, block), []).extend(shares)
                continue
            shares = shares + waiting.pop((copy.home, block), [])
            if copy.received:
                sent[f"b{block}"] = shares
            else:
                arrived.update((block, reader) for reader in shares)
        assert not set(given) - {"partial"}, "a gradient comes for what this chunk did not give"
        if chunk.index:
            names = plan.gradient_hops[n_hops]
            assert names[:2] == (chunk.index, chunk.index - 1)
            assert set(sent) == set(names[2]) - {"partial"}
            n_hops += 1
    assert not waiting, "a gradient is left behind"
    return arrived


def test_every_reader_s_gradient_reaches_the_maker_once():
    for plan in random_plans(150):
        reads = Counter()
        for chunk in plan.chunks:
            reads.update((n, chunk.index) for n in (*range(chunk.n_before), *chunk.read_where_made))
        assert run_backward(plan) == reads


def test_a_route_leads_from_the_maker_by_hops_and_along_ranks():
    for plan in random_plans(40):
        for copy in plan.copies:
            if copy.block is None:
                continue
            route = plan.route(copy.block, copy.home)
            assert copy.block in plan.chunks[route[0]].made
            for home, following in pairwise(route):
                assert copy.block in plan.hops[following - 1].blocks
                assert (following - 1 - home) % plan.n_stages == 0


def test_the_gradient_of_a_kept_block_waits_for_its_home():
    plan = plan_pipeline(BlockLayout.of(8, n_blocks=4), 4, 2)
    copy = plan.copy_of(1, 6)  # made by chunk 1, on rank 2 since chunk 2
    assert (copy.home, copy.received, copy.readers, copy.deposits) == (2, True, (2, 6), (6,))
    own = plan.copy_of(1, 5)
    assert (own.home, own.received, own.readers, own.deposits) == (1, False, (5,), (5,))
    assert (own.forward_end, own.backward_end) == (5, 5)
    assert plan.route(1, 4) == (1, 2, 3, 4)
    assert plan.route(3, 7) == (5, 6, 7)
    assert plan.gradient_hops[0] == (7, 6, ("b3", "partial"))


def test_a_source_is_held_once_a_rank_and_not_once_a_chunk():
    layout = BlockLayout.of(8, n_blocks=4)
    held = {keep: plan_pipeline(layout, 4, 2, keep=keep).held for keep in KEEP}
    assert held == {"nothing": (4, 6, 6, 9), "received": (3, 5, 4, 7), "all": (3, 5, 4, 7)}


def test_cuts_are_even_with_larger_chunks_first():
    assert even_cuts(54, 8) == (7, 14, 21, 28, 35, 42, 48)
    assert even_cuts(54, 8, whole_layers=True) == (8, 16, 24, 30, 36, 42, 48)
    assert even_cuts(4, 4) == (1, 2, 3)
    assert even_cuts(5, 1) == ()
    sizes = [chunk.n_sublayers for chunk in cut(BlockLayout.full(11), 2, 2)]
    assert sizes == [3, 3, 3, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0,), "n_stages must be a positive integer, got 0"),
        ((2, 1.5), "n_virtual must be a positive integer, got 1.5"),
        ((3, 3), "9 chunks are more than the model's 8 sublayers"),
        ((2, 2, (2, 4)), r"4 chunks are made by 3 cuts, got 2: \[2, 4\]"),
        ((2, 2, (2, 2, 5)), r"cuts must rise and lie between 1 and 7, got \[2, 2, 5\]"),
        ((2, 2, (2, 5, 8)), r"cuts must rise and lie between 1 and 7, got \[2, 5, 8\]"),
        ((2, 1, (0,)), "a cut must be a positive integer, got 0"),
        ((2, 1, None, "some"), "keep must be one of nothing, received, all, got 'some'"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan_pipeline(BlockLayout.of(8, n_blocks=2), *arguments)


def test_layers_that_cannot_be_kept_whole_are_refused():
    with pytest.raises(ValueError, match="5 chunks are more than the model's 4 layers"):
        even_cuts(8, 5, whole_layers=True)
    with pytest.raises(ValueError, match="7 sublayers are no whole number"):
        even_cuts(7, 2, whole_layers=True)


def test_no_chunk_has_what_it_does_not_use():
    plan = plan_pipeline(BlockLayout.full(4), 2, 2)
    with pytest.raises(ValueError, match="chunk 0 uses no block 3"):
        plan.copy_of(3, 0)
