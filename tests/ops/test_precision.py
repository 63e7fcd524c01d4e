"""Autocast changes nothing: the arithmetic of a read is float32 in both directions."""

from collections.abc import Callable

import pytest
import torch
from error_budget import EPS, Read, forward_backward, random_read
from implementations import IMPLEMENTATIONS, KERNELS
from torch import Tensor

from attnres import depth_attention, depth_weights

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def _mix_and_backward(read: Read, impl: str) -> tuple[Tensor, Callable[[], list[Tensor]]]:
    inputs = [x.detach().requires_grad_() for x in (read.query_D, read.key_weight_D, *read.sources)]
    mix_D = depth_attention(inputs[0], inputs[2:], inputs[1], impl=impl)
    return mix_D, lambda: list(torch.autograd.grad(mix_D, inputs, read.upstream_D))


@every_impl
@every_dtype
def test_a_forward_under_autocast_is_the_same_to_the_bit(impl, dtype):
    read = random_read(5, 6, 64, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mix_D, backward = _mix_and_backward(read, impl)
        alpha_S = depth_weights(read.query_D, read.sources, read.key_weight_D, impl=impl)
    expected = forward_backward(read, impl)
    assert mix_D.dtype == dtype
    for actual, value in zip([mix_D, *backward()], expected.values(), strict=True):
        assert torch.equal(actual, value)
    outside = depth_weights(read.query_D, read.sources, read.key_weight_D, impl=impl)
    assert torch.equal(alpha_S, outside)


@every_dtype
def test_a_backward_under_autocast_is_the_same_to_the_bit(dtype):
    read = random_read(5, 6, 64, dtype=dtype)
    mix_D, backward = _mix_and_backward(read, "closed_form")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = backward()
    expected = forward_backward(read, "closed_form")
    for actual, value in zip([mix_D, *gradients], expected.values(), strict=True):
        assert torch.equal(actual, value)


@every_impl
def test_float32_parameters_are_not_rounded_to_bfloat16_sources(impl):
    read = random_read(5, 6, 64)
    sources = [v.bfloat16() for v in read.sources]
    alpha_S = depth_weights(read.query_D, sources, read.key_weight_D, eps=EPS, impl=impl)
    exact_S = depth_weights(
        read.query_D.double(),
        [v.double() for v in sources],
        read.key_weight_D.double(),
        eps=EPS,
        impl="reference",
    )
    torch.testing.assert_close(alpha_S, exact_S.float(), atol=1e-6, rtol=1e-5)
    rounded_S = depth_weights(read.query_D.bfloat16(), sources, read.key_weight_D, impl=impl)
    assert (rounded_S - exact_S).abs().max() > 1e-4


@every_impl
def test_second_derivatives_are_those_of_finite_differences(impl):
    read = random_read(3, 2, 4, dtype=torch.float64)
    inputs = [read.query_D, read.key_weight_D, *read.sources]
    for x in inputs:
        x.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda q, g, *v: depth_attention(q, v, g, impl=impl), inputs
    )


@pytest.mark.parametrize("impl", KERNELS)
def test_a_backward_with_a_graph_under_autocast_is_that_outside(impl):
    read = random_read(5, 6, 64)
    inputs = [x.requires_grad_() for x in (read.query_D, read.key_weight_D, *read.sources)]
    mix_D = depth_attention(inputs[0], inputs[2:], inputs[1], impl=impl)
    expected = torch.autograd.grad(mix_D, inputs, read.upstream_D, create_graph=True)
    mix_D = depth_attention(inputs[0], inputs[2:], inputs[1], impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(mix_D, inputs, read.upstream_D, create_graph=True)
    for actual, value in zip(found, expected, strict=True):
        assert torch.equal(actual, value)
