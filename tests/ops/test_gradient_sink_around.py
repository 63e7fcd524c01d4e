"""Shared gradient buffers beside threads, the compiler and function transforms; their memory."""

import gc
import threading
import weakref

import pytest
import torch
import torch._dynamo.compiled_autograd
from implementations import KERNELS
from shared_graph import DIM, N_READS, N_SOURCES, Graph, assert_equal, expected_gradients
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnres import depth_attention
from attnres.ops import own

every_kernel = pytest.mark.parametrize("impl", KERNELS)


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
    doubled = {name: 2 * x for name, x in expected_gradients(impl=impl).items()}
    assert_equal(graph.gradients(), doubled)
    assert filled.count(False) == 2 * N_SOURCES


def test_buffers_are_gone_after_a_backward_and_the_graph_with_its_last_name():
    gc.collect()
    gc.disable()
    try:
        graph = Graph(shared=True).read()
        owners = [source.grad_fn for source in graph.sources]
        loss = graph.loss()
        for _ in range(2):
            loss.backward(retain_graph=True)
            assert not any(owner.buffers for owner in owners)  # type: ignore[attr-defined]  set by `own`
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


@pytest.mark.slow
def test_compiled_autograd_sees_no_buffer(filled):
    graph = Graph(shared=True).read()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        graph.loss().backward()
    assert_equal(graph.gradients(), expected_gradients())
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
    assert_equal(graph.gradients(), expected_gradients())
    assert filled
