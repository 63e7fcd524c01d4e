"""Tensors without numbers: a model can be built, traced and sized before it has memory."""

import pytest
import torch
from error_budget import Read, forward_backward, random_read
from implementations import IMPLEMENTATIONS
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from attnres import depth_attention, depth_weights

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)


@every_impl
def test_meta_tensors_give_shapes(impl):
    read = random_read(3, 2, 8)
    on_meta = Read(
        query_D=read.query_D.to("meta"),
        key_weight_D=read.key_weight_D.to("meta"),
        sources=[source.to("meta") for source in read.sources],
        upstream_D=read.upstream_D.to("meta"),
    )
    actual = forward_backward(on_meta, impl)
    expected = forward_backward(read, impl)
    assert {n: x.shape for n, x in actual.items()} == {n: x.shape for n, x in expected.items()}
    assert {x.device.type for x in actual.values()} == {"meta"}
    alpha_S = depth_weights(on_meta.query_D, on_meta.sources, on_meta.key_weight_D, impl=impl)
    assert alpha_S.shape == (3, 2)


@every_impl
def test_fake_tensors_give_shapes(impl):
    with FakeTensorMode():
        read = Read(
            query_D=torch.randn(8),
            key_weight_D=torch.randn(8),
            sources=[torch.randn(2, 8) for _ in range(3)],
            upstream_D=torch.randn(2, 8),
        )
        actual = forward_backward(read, impl)
    assert all(isinstance(x, FakeTensor) for x in actual.values())
    assert actual["mix"].shape == actual["source 2"].shape == (2, 8)
    assert actual["query"].shape == actual["key_weight"].shape == (8,)


class Wrapper(torch.Tensor):
    """A subclass without memory: every operator goes to the tensor that it wraps."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, wrapped):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, wrapped.shape, dtype=wrapped.dtype)
        wrapper.wrapped = wrapped
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda x: x.wrapped, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


@every_impl
def test_a_kernel_reads_no_memory_of_tensors_that_have_none(impl):
    """Plain parameters, sources that are stand-ins: their address is null."""
    read = random_read(3, 2, 8)
    expected = depth_attention(read.query_D, read.sources, read.key_weight_D, impl="reference")
    wrapped = [Wrapper(source) for source in read.sources]
    actual = depth_attention(read.query_D, wrapped, read.key_weight_D, impl=impl)
    assert isinstance(actual, Wrapper)
    torch.testing.assert_close(actual.wrapped, expected)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(source) for source in read.sources]
    actual = depth_attention(read.query_D, fake, read.key_weight_D, impl=impl)
    assert isinstance(actual, FakeTensor)


@every_impl
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("trace", [torch.jit.trace, lambda f, x: make_fx(f)(*x)])
def test_a_trace_with_true_tensors_computes_from_its_inputs(impl, trace):
    read = random_read(3, 2, 8)

    def mix(query_D, *sources):
        return depth_attention(query_D, sources, read.key_weight_D, impl=impl)

    traced = trace(mix, (read.query_D, *read.sources))
    inputs = (read.query_D.neg(), *map(torch.sin, read.sources))
    torch.testing.assert_close(traced(*inputs), mix(*inputs))
