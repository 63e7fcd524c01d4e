"""A source's shared gradient buffer changes no gradient that anyone can see."""

import weakref

import pytest
import torch
from error_budget import assert_as_good_as
from implementations import KERNELS
from shared_graph import DIM, N_READS, N_SOURCES, Graph, assert_equal, expected_gradients
from torch import Tensor
from torch.autograd.graph import Node

from attnres import depth_attention
from attnres.ops import depth_attention_queries, merge, own

every_kernel = pytest.mark.parametrize("impl", KERNELS)


@every_kernel
def test_gradients_are_those_of_autograd(impl, filled):
    graph = Graph(shared=True, impl=impl).read()
    graph.loss().backward()
    assert_equal(graph.gradients(), expected_gradients(impl=impl))
    assert filled.count(False) == N_SOURCES
    assert filled.count(True) == N_SOURCES * (N_READS - 1)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_within_the_budget_of_additions_by_autograd(impl, dtype, filled):
    shape = (2, 17, 40)
    actual = Graph(True, dtype, impl, shape).read()
    actual.loss().backward()
    plain = expected_gradients(dtype=dtype, impl="reference", shape=shape)
    exact = Graph(False, torch.float64, "reference", shape)
    for mine, theirs in zip(exact.named.values(), actual.named.values(), strict=True):
        mine.data.copy_(theirs.data)
    exact.sources = [torch.sin(x) for x in exact.leaves.values()]
    exact.read().loss().backward()
    for kind in ("leaf", "query", "key"):
        stacks = (
            torch.stack([x for name, x in found.items() if name.startswith(kind)])
            for found in (actual.gradients(), plain, exact.gradients())
        )
        assert_as_good_as(*stacks, name=kind)
    assert filled


def test_readers_of_every_kind_share_the_buffer(filled):
    def run(graph: Graph) -> None:
        queries, keys = torch.stack(graph.queries), torch.stack(graph.key_weights)
        mix_QD, lse_Q = depth_attention_queries(queries, graph.sources[:2], keys, impl=graph.impl)
        for mix_D, lse, query_D, key_weight_D in zip(mix_QD, lse_Q, queries, keys, strict=True):
            mixed = merge(mix_D, lse, graph.sources[2:], query_D, key_weight_D, impl=graph.impl)
            graph.mixes.append(mixed[0])
        graph.loss().backward()

    graphs = [Graph(shared=shared) for shared in (True, False)]
    for graph in graphs:
        run(graph)
    assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert filled.count(False) == N_SOURCES


def test_a_retained_graph_gives_the_same_gradients_again(filled):
    graph = Graph(shared=True).read()
    loss = graph.loss()
    found = []
    for _ in range(3):
        loss.backward(retain_graph=True)
        found.append(graph.gradients())
        for x in graph.named.values():
            x.grad = None
    for again in found[1:]:
        assert_equal(again, found[0], tolerance=0)
    assert len(filled) == 3 * N_SOURCES * N_READS


def test_second_derivatives_are_those_of_autograd(filled):
    def run(graph: Graph) -> None:
        graph.loss().backward(create_graph=True)
        assert not filled
        first = [x.grad for x in graph.named.values()]
        for x in graph.named.values():
            x.grad = None
        torch.stack([(g * g).sum() for g in first if g is not None]).sum().backward()

    graph = Graph(shared=True).read()
    run(graph)
    filled.clear()
    assert_equal(graph.gradients(), expected_gradients(run))


def test_a_backward_after_one_with_create_graph(filled):
    graph = Graph(shared=True).read()
    loss = graph.loss()
    loss.backward(create_graph=True)
    for x in graph.named.values():
        x.grad = None
    loss.backward()
    assert_equal(graph.gradients(), expected_gradients())
    assert filled


@pytest.mark.parametrize("before", [True, False])
def test_a_hook_on_a_source_sees_the_whole_gradient_and_may_change_it(before, filled):
    def run(graph: Graph) -> list[Tensor]:
        seen = []
        if not before:
            graph.read()
        graph.sources[2].register_hook(lambda g: seen.append(g.clone()) or 2 * g)
        if before:
            graph.read()
        graph.loss().backward()
        return seen

    graphs = [Graph(shared=shared) for shared in (True, False)]
    (seen,), (expected,) = (run(graph) for graph in graphs)
    torch.testing.assert_close(seen, expected, atol=1e-12, rtol=1e-12)
    assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert filled.count(False) == N_SOURCES - 1  # the others share theirs


def test_a_hook_that_was_removed_is_no_hook(filled):
    graph = Graph(shared=True)
    graph.sources[2].register_hook(lambda g: 2 * g).remove()
    graph.read().loss().backward()
    assert_equal(graph.gradients(), expected_gradients())
    assert filled.count(False) == N_SOURCES


def _node(source: Tensor) -> Node:
    assert source.grad_fn is not None
    return source.grad_fn


@pytest.mark.parametrize("is_prehook", [True, False])
def test_a_hook_on_the_node_of_a_source_sees_the_whole_gradient(is_prehook, filled):
    def run(graph: Graph) -> list[Tensor]:
        seen = []
        node = _node(graph.sources[2])
        if is_prehook:
            node.register_prehook(lambda g: seen.append(g[0].clone()) or (2 * g[0],))
        elif graph.sources[2].grad_fn.name().startswith("_Owner"):  # type: ignore[union-attr]  it has one
            node.register_hook(lambda _, g: seen.append(g[0].clone()))
        graph.read().loss().backward()
        return seen

    graphs = [Graph(shared=shared) for shared in (True, False)]
    seen, expected = (run(graph) for graph in graphs)
    assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert len(seen) == 1
    if is_prehook:
        torch.testing.assert_close(seen[0], expected[0], atol=1e-12, rtol=1e-12)
    assert filled.count(False) == N_SOURCES - 1


@pytest.mark.parametrize("is_held", [True, False])
def test_retain_grad_of_a_source(is_held, filled):
    def run(graph: Graph) -> Tensor:
        graph.sources[2].retain_grad()
        graph.read().loss().backward()
        assert graph.sources[2].grad is not None
        return graph.sources[2].grad

    graphs = [Graph(shared=shared) for shared in (True, False)]
    if not is_held:
        graphs[0].sources[2] = _forget_and_find_again(graphs[0])
    actual, expected = (run(graph) for graph in graphs)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert filled.count(False) == N_SOURCES - 1


def _forget_and_find_again(graph: Graph) -> Tensor:
    """The source, after no Python name has held it for a while."""
    keep = torch.tanh(graph.sources[2])  # saves nothing of its input
    mix_D = depth_attention(graph.queries[0], graph.sources, graph.key_weights[0], impl=graph.impl)
    graph.mixes.append((mix_D + 0 * keep) * 0)
    del keep
    source = graph.sources[2]
    reference = weakref.ref(source)
    del source
    found = reference()
    assert found is not None
    return found


def test_retain_grad_after_the_reads(filled):
    graphs = [Graph(shared=shared).read() for shared in (True, False)]
    for graph in graphs:
        graph.sources[0].retain_grad()
        graph.loss().backward()
    actual, expected = (graph.sources[0].grad for graph in graphs)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert filled.count(False) == N_SOURCES - 1


WANTED = {
    "a source": lambda graph: [graph.sources[2]],
    "all sources": lambda graph: graph.sources,
    "a leaf": lambda graph: [graph.leaves["leaf 1"]],
    "a query": lambda graph: [graph.queries[3]],
    "a source and its leaf": lambda graph: [graph.sources[2], graph.leaves["leaf 2"]],
    "everything": lambda graph: [*graph.sources, *graph.named.values()],
}
every_want = pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)


@every_want
def test_gradients_with_respect_to_some_tensors(wanted, filled):
    actual, expected = (
        torch.autograd.grad(graph.loss(), wanted(graph))
        for graph in (Graph(shared=shared).read() for shared in (True, False))
    )
    for value, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, other, atol=1e-12, rtol=1e-12)
    assert not filled


@every_want
def test_backward_into_some_tensors(wanted, filled):
    found = []
    for graph in (Graph(shared=shared).read() for shared in (True, False)):
        for source in graph.sources:
            source.retain_grad()
        graph.loss().backward(inputs=wanted(graph))
        sources = {f"source {i}": x.grad for i, x in enumerate(graph.sources) if x.grad is not None}
        found.append({**graph.gradients(), **sources})
    assert_equal(*found)
    assert not filled


def test_a_backward_that_failed_half_way_leaves_nothing_behind(filled):
    graph = Graph(shared=True).read()
    loss = graph.loss()
    handle = graph.mixes[2].register_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        loss.backward(retain_graph=True)
    assert filled  # some reader had written
    handle.remove()
    for x in graph.named.values():
        x.grad = None
    loss.backward()
    assert_equal(graph.gradients(), expected_gradients())


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("on purpose")


def test_two_losses_that_share_the_graph(filled):
    def run(graph: Graph) -> None:
        graph.mixes[4].square().sum().backward(retain_graph=True)
        torch.sin(graph.mixes[1]).sum().backward(retain_graph=True)
        graph.loss().backward()

    graph = Graph(shared=True).read()
    run(graph)
    assert_equal(graph.gradients(), expected_gradients(run))
    assert filled.count(False) == 3 * N_SOURCES


def test_a_source_that_is_given_twice(filled):
    graphs = [Graph(shared=shared) for shared in (True, False)]
    for graph in graphs:
        graph.read([graph.sources[0], graph.sources[1], graph.sources[0]]).loss().backward()
    assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert len(filled) == 2 * N_READS  # once by a reader: a kernel's buffers are not one another


def test_a_source_that_is_cast_on_the_way(filled):
    graphs = [Graph(shared=shared, dtype=torch.float32) for shared in (True, False)]
    for graph in graphs:
        graph.read()
        narrow = [graph.sources[0], *(x.bfloat16() for x in graph.sources[1:])]
        graph.read(narrow).read([x.double() for x in graph.sources]).read().loss().backward()
    assert_equal(graphs[0].gradients(), graphs[1].gradients(), tolerance=1e-5)
    assert filled


def test_views_of_a_source(filled):
    graphs = [Graph(shared=shared) for shared in (True, False)]
    for graph in graphs:
        views = [graph.sources[0].flip(0), graph.sources[1][:], *graph.sources[2:]]
        graph.read(views).loss().backward()
    assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert filled.count(False) == 2


def test_a_source_that_no_loss_asks_for(filled):
    graph = Graph(shared=True)
    unread = own(torch.sin(graph.leaves["leaf 0"]))
    graph.read().mixes[0].sum().backward()
    assert unread.grad is None
    assert filled


def test_a_leaf_may_be_a_source_and_its_gradient_accumulates(filled):
    def run(share: bool) -> Tensor:
        torch.manual_seed(0)
        leaf = torch.randn(5, DIM, dtype=torch.float64, requires_grad=True)
        other = torch.randn(5, DIM, dtype=torch.float64)
        query_D = torch.randn(DIM, dtype=torch.float64)
        for _ in range(2):
            source = own(leaf) if share else leaf
            mix_D = source
            for _ in range(3):
                mix_D = depth_attention(query_D, [source, other], query_D, impl=KERNELS[-1])
                mix_D.square().sum().backward(retain_graph=True)
            torch.stack([mix_D.sum(), torch.sin(source).sum()]).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    torch.testing.assert_close(run(True), run(False), atol=1e-12, rtol=1e-12)
    assert filled
