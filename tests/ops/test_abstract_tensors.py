"""Tensors without numbers: a model can be built, traced and sized before it has memory."""

import pytest
import torch
from error_budget import Read, forward_backward, random_read
from implementations import IMPLEMENTATIONS
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from attnres import depth_weights

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
