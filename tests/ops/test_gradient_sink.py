"""A source's shared gradient buffer changes no gradient that anyone can see."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
import torch._dynamo.compiled_autograd
from error_budget import assert_as_good_as
from implementations import KERNELS
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from attnres import depth_attention
from attnres.ops import depth_attention_queries, gradient_sink, merge, own

N_SOURCES, N_READS, DIM = 4, 6, 24
Tensors = dict[str, Tensor]
every_kernel = pytest.mark.parametrize("impl", KERNELS)


class Graph:
    """Leaves, the sources made of them, and reads whose mixes make a loss."""

    def __init__(self, shared: bool, dtype=torch.float64, impl: str = KERNELS[-1], shape=(5, DIM)):
        generator = torch.Generator().manual_seed(0)

        def leaf(*size: int) -> Tensor:
            x = torch.randn(size, generator=generator, dtype=torch.float64)
            return x.to(dtype).requires_grad_()

        self.impl = impl
        self.leaves: Tensors = {f"leaf {i}": leaf(*shape) for i in range(N_SOURCES)}
        self.queries = [leaf(shape[-1]) for _ in range(N_READS)]
        self.key_weights = [leaf(shape[-1]) for _ in range(N_READS)]
        self.sources = [torch.sin(x) for x in self.leaves.values()]
        if shared:
            self.sources = [own(x) for x in self.sources]
        self.mixes: list[Tensor] = []

    @property
    def named(self) -> Tensors:
        queries = {f"query {i}": x for i, x in enumerate(self.queries)}
        return {**self.leaves, **queries, **{f"key {i}": x for i, x in enumerate(self.key_weights)}}

    def read(self, sources: Sequence[Tensor] | None = None) -> "Graph":
        for query_D, key_weight_D in zip(self.queries, self.key_weights, strict=True):
            given = self.sources if sources is None else sources
            self.mixes.append(depth_attention(query_D, given, key_weight_D, impl=self.impl))
        return self

    def loss(self) -> Tensor:
        """With a consumer of a source beside the reads."""
        terms = [(mix * torch.cos(mix)).sum() for mix in self.mixes]
        return torch.stack([*terms, torch.tanh(self.sources[1]).sum()]).sum()

    def gradients(self) -> Tensors:
        return {n: x.grad.clone() for n, x in self.named.items() if x.grad is not None}


@pytest.fixture
def filled(monkeypatch) -> list[bool]:
    """One entry each time that a reader fills a buffer: whether another had written it."""
    found: list[bool] = []
    original = gradient_sink.buffer_of

    def noting(owner, like):
        buffer, is_written = original(owner, like)
        found.append(is_written)
        return buffer, is_written

    monkeypatch.setattr(gradient_sink, "buffer_of", noting)
    return found


def _assert_equal(actual: Tensors, expected: Tensors, tolerance: float = 1e-12) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def _expected(run: Callable[[Graph], object] | None = None, **kwargs) -> Tensors:
    graph = Graph(shared=False, **kwargs).read()
    if run is None:
        graph.loss().backward()
    else:
        run(graph)
    return graph.gradients()


@every_kernel
def test_gradients_are_those_of_autograd(impl, filled):
    graph = Graph(shared=True, impl=impl).read()
    graph.loss().backward()
    _assert_equal(graph.gradients(), _expected(impl=impl))
    assert filled.count(False) == N_SOURCES
    assert filled.count(True) == N_SOURCES * (N_READS - 1)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_within_the_budget_of_additions_by_autograd(impl, dtype, filled):
    shape = (2, 17, 40)
    actual = Graph(True, dtype, impl, shape).read()
    actual.loss().backward()
    plain = _expected(dtype=dtype, impl="reference", shape=shape)
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
    _assert_equal(graphs[0].gradients(), graphs[1].gradients())
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
        _assert_equal(again, found[0], tolerance=0)
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
    _assert_equal(graph.gradients(), _expected(run))


def test_a_backward_after_one_with_create_graph(filled):
    graph = Graph(shared=True).read()
    loss = graph.loss()
    loss.backward(create_graph=True)
    for x in graph.named.values():
        x.grad = None
    loss.backward()
    _assert_equal(graph.gradients(), _expected())
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
    _assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert filled.count(False) == N_SOURCES - 1  # the others share theirs


def test_a_hook_that_was_removed_is_no_hook(filled):
    graph = Graph(shared=True)
    graph.sources[2].register_hook(lambda g: 2 * g).remove()
    graph.read().loss().backward()
    _assert_equal(graph.gradients(), _expected())
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
        elif graph.sources[2].grad_fn.name().startswith("_Owner"):  # type: ignore[union-attr]
            node.register_hook(lambda _, g: seen.append(g[0].clone()))
        graph.read().loss().backward()
        return seen

    graphs = [Graph(shared=shared) for shared in (True, False)]
    seen, expected = (run(graph) for graph in graphs)
    _assert_equal(graphs[0].gradients(), graphs[1].gradients())
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
    _assert_equal(*found)
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
    _assert_equal(graph.gradients(), _expected())


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("on purpose")


def test_two_losses_that_share_the_graph(filled):
    def run(graph: Graph) -> None:
        graph.mixes[4].square().sum().backward(retain_graph=True)
        torch.sin(graph.mixes[1]).sum().backward(retain_graph=True)
        graph.loss().backward()

    graph = Graph(shared=True).read()
    run(graph)
    _assert_equal(graph.gradients(), _expected(run))
    assert filled.count(False) == 3 * N_SOURCES


def test_a_source_that_is_given_twice(filled):
    graphs = [Graph(shared=shared) for shared in (True, False)]
    for graph in graphs:
        graph.read([graph.sources[0], graph.sources[1], graph.sources[0]]).loss().backward()
    _assert_equal(graphs[0].gradients(), graphs[1].gradients())
    assert len(filled) == 2 * N_READS  # once by a reader: a kernel's buffers are not one another


def test_a_source_that_is_cast_on_the_way(filled):
    graphs = [Graph(shared=shared, dtype=torch.float32) for shared in (True, False)]
    for graph in graphs:
        graph.read()
        narrow = [graph.sources[0], *(x.bfloat16() for x in graph.sources[1:])]
        graph.read(narrow).read([x.double() for x in graph.sources]).read().loss().backward()
    _assert_equal(graphs[0].gradients(), graphs[1].gradients(), tolerance=1e-5)
    assert filled


def test_views_of_a_source(filled):
    graphs = [Graph(shared=shared) for shared in (True, False)]
    for graph in graphs:
        views = [graph.sources[0].flip(0), graph.sources[1][:], *graph.sources[2:]]
        graph.read(views).loss().backward()
    _assert_equal(graphs[0].gradients(), graphs[1].gradients())
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


@every_kernel
def test_two_threads_may_run_backward_at_once(impl, filled):
    """Both stand half-way through the same graph before either goes on."""
    graph = Graph(shared=True, impl=impl).read()
    barrier = threading.Barrier(2, timeout=20)

    def wait(gradient: Tensor) -> None:
        barrier.wait()

    for mix in graph.mixes:
        mix.register_hook(wait)
    loss = graph.loss()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            loss.backward(retain_graph=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    doubled = {name: 2 * x for name, x in _expected(impl=impl).items()}
    _assert_equal(graph.gradients(), doubled)
    assert filled.count(False) == 2 * N_SOURCES


def test_buffers_are_gone_after_a_backward_and_the_graph_with_its_last_name():
    gc.collect()
    gc.disable()
    try:
        graph = Graph(shared=True).read()
        owners = [_node(source) for source in graph.sources]
        loss = graph.loss()
        for _ in range(2):
            loss.backward(retain_graph=True)
            assert not any(owner.buffers for owner in owners)  # type: ignore[attr-defined]
        references = [weakref.ref(x) for x in (*graph.sources, *graph.mixes, loss)]
        del graph, owners, loss
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


class Alive(TorchDispatchMode):
    """The most bytes in wide tensors that operators have made and that live at once."""

    def __init__(self, n_numbers: int):
        super().__init__()
        self.n_numbers = n_numbers
        self.made: dict[int, weakref.ref[Tensor]] = {}
        self.n_made = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() == self.n_numbers:
            if result.data_ptr() not in self.made:
                self.n_made += 1
            self.made[result.data_ptr()] = weakref.ref(result)
        self.made = {address: ref for address, ref in self.made.items() if ref() is not None}
        self.most = max(self.most, len(self.made))
        return result


def test_fewer_wide_tensors_are_made_and_live_in_a_backward():
    counts = []
    for shared in (True, False):
        graph = Graph(shared).read()
        loss = torch.stack([mix.sum() for mix in graph.mixes]).sum()
        with Alive(5 * DIM) as alive:
            loss.backward()
        counts.append((alive.n_made, alive.most))
    (made, most), (made_by_autograd, most_by_autograd) = counts
    assert made_by_autograd - made >= N_SOURCES * (N_READS - 1)
    assert most < most_by_autograd


def test_what_needs_no_gradient_is_its_own_source():
    plain = torch.randn(3)
    assert own(plain) is plain
    leaf = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert own(leaf) is leaf
    with torch.inference_mode():
        assert own(leaf) is leaf
    assert own(leaf).data_ptr() == leaf.data_ptr()


def test_the_compiler_sees_no_buffer(filled):
    def read(query_D, *leaves):
        sources = [own(torch.sin(x)) for x in leaves]
        first = depth_attention(query_D, sources, query_D, impl="closed_form")
        return first + depth_attention(query_D, [*sources, first], query_D, impl="closed_form")

    torch._dynamo.reset()
    inputs = [torch.randn(s, requires_grad=True) for s in ((DIM,), (5, DIM), (5, DIM))]
    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    compiled(*inputs).square().sum().backward()
    actual = [x.grad for x in inputs]
    assert not filled
    for value, other in zip(
        actual, torch.autograd.grad(read(*inputs).square().sum(), inputs), strict=True
    ):
        torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-5)


def test_compiled_autograd_sees_no_buffer(filled):
    graph = Graph(shared=True).read()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        graph.loss().backward()
    _assert_equal(graph.gradients(), _expected())
    assert not filled


def test_function_transforms_and_forward_mode_go_through_the_identity():
    x = torch.randn(5, dtype=torch.float64)
    gradient = torch.func.grad(lambda v: own(v).square().sum())(x)
    torch.testing.assert_close(gradient, 2 * x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(own(dual).square()).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, 2 * x.detach())


def test_anomaly_detection_and_offloaded_saved_tensors(filled):
    with torch.autograd.detect_anomaly(), torch.autograd.graph.save_on_cpu():
        graph = Graph(shared=True).read()
        graph.loss().backward()
    _assert_equal(graph.gradients(), _expected())
    assert filled
