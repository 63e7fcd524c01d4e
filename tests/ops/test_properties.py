"""What depth attention must be, whatever computes it (arXiv:2603.15031, section 3.1)."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from error_budget import EPS, forward_backward, random_read
from implementations import IMPLEMENTATIONS
from torch import Tensor
from torch.autograd import gradcheck

from attnres import depth_attention, depth_weights

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _written_out(query_D, sources, key_weight_D, eps) -> tuple[Tensor, Tensor]:
    """Weights and mix of one token, with no op of the library."""
    logits = []
    for v in sources:
        rms = (v.square().sum() / v.numel() + eps).sqrt()
        logits.append((query_D * key_weight_D * v / rms).sum())
    exponentials = torch.stack(logits).exp()
    alpha_S = exponentials / exponentials.sum()
    return alpha_S, torch.stack([a * v for a, v in zip(alpha_S, sources, strict=True)]).sum(0)


@every_impl
@pytest.mark.parametrize("eps", [0.0, EPS, 0.3])
def test_one_token_follows_the_formula(impl, eps):
    read = random_read(5, 7, dtype=torch.float64)
    arguments = (read.query_D, read.sources, read.key_weight_D)
    alpha_S, mix_D = _written_out(*arguments, eps)
    torch.testing.assert_close(depth_weights(*arguments, eps=eps, impl=impl), alpha_S)
    torch.testing.assert_close(depth_attention(*arguments, eps=eps, impl=impl), mix_D)


@every_impl
@pytest.mark.parametrize("eps", [0.0, EPS])
@pytest.mark.parametrize("n_sources", [1, 2, 5])
def test_gradients_are_those_of_finite_differences(impl, n_sources, eps):
    read = random_read(n_sources, 2, 3, 4, dtype=torch.float64)
    inputs = [read.query_D, read.key_weight_D, *read.sources]
    for x in inputs:
        x.requires_grad_()
    for op in (depth_attention, depth_weights):
        assert gradcheck(lambda q, g, *v, op=op: op(q, v, g, eps=eps, impl=impl), inputs)


@every_impl
def test_zero_source_has_the_gradient_of_finite_differences(impl):
    eps = 1e-2  # the step of the differences must be small beside the root of it
    read = random_read(3, 2, 4, dtype=torch.float64)
    inputs = [read.query_D, read.key_weight_D, *read.sources]
    inputs[3] = torch.zeros(2, 4, dtype=torch.float64)
    for x in inputs:
        x.requires_grad_()
    for op in (depth_attention, depth_weights):
        assert gradcheck(lambda q, g, *v, op=op: op(q, v, g, eps=eps, impl=impl), inputs)


@every_impl
@every_dtype
def test_zero_source_gives_finite_numbers(impl, dtype):
    read = random_read(3, 2, 8, dtype=dtype)
    sources = [read.sources[0], torch.zeros(2, 8, dtype=dtype), read.sources[2]]
    for name, value in forward_backward(replace(read, sources=sources), impl).items():
        assert value.isfinite().all(), name


@every_impl
@every_dtype
def test_zero_query_gives_the_mean(impl, dtype):
    read = replace(random_read(4, 5, 8, dtype=dtype), query_D=torch.zeros(8, dtype=dtype))
    alpha_S = depth_weights(read.query_D, read.sources, read.key_weight_D, impl=impl)
    assert torch.equal(alpha_S, torch.full((4, 5), 0.25))
    actual = forward_backward(read, impl)
    mean_D = torch.stack([v.double() for v in read.sources]).mean(0)
    torch.testing.assert_close(actual["mix"], mean_D.to(dtype))
    for i in range(4):
        assert torch.equal(actual[f"source {i}"], read.upstream_D / 4)


@every_impl
@every_dtype
def test_one_source_comes_back_bit_for_bit(impl, dtype):
    read = random_read(1, 3, 5, 123, dtype=dtype)
    actual = forward_backward(read, impl)
    assert torch.equal(actual["mix"], read.sources[0])
    assert torch.equal(actual["source 0"], read.upstream_D)
    assert not actual["query"].any()
    assert not actual["key_weight"].any()


@every_impl
@every_dtype
def test_keys_are_normalised_and_values_are_not(impl, dtype):
    read = random_read(2, 6, 64, dtype=dtype)
    small, large = read.sources[0].sign(), read.sources[0].sign() * 1000
    arguments = (read.query_D, [small, large], read.key_weight_D)
    alpha_S = depth_weights(*arguments, impl=impl)
    torch.testing.assert_close(alpha_S, torch.full((2, 6), 0.5), atol=1e-5, rtol=0)
    mix_D = depth_attention(*arguments, impl=impl)
    torch.testing.assert_close(mix_D, (500.5 * small.double()).to(dtype), atol=0, rtol=1e-5)


@every_impl
def test_key_weight_may_stand_on_either_side_of_the_product(impl):
    """Only query * key_weight acts on the logits; a cast before the gain gives others."""
    read = random_read(6, 50, 96, dtype=torch.bfloat16)
    query_D, gain_D = read.query_D * 4, read.key_weight_D
    actual = depth_weights(query_D, read.sources, gain_D, impl=impl)
    v_SD = torch.stack([v.float() for v in read.sources])
    key_SD = v_SD * (v_SD.square().mean(-1, keepdim=True) + EPS).rsqrt()
    on_key = ((gain_D.float() * key_SD) @ query_D.float()).softmax(0)
    on_query = (key_SD @ (query_D.float() * gain_D.float())).softmax(0)
    cast_before_gain = ((gain_D * key_SD.bfloat16()).float() @ query_D.float()).softmax(0)
    torch.testing.assert_close(actual, on_key, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(actual, on_query, atol=1e-5, rtol=1e-4)
    assert (actual - cast_before_gain).abs().max() > 1e-3


@every_impl
@every_dtype
def test_a_huge_query_gives_a_finite_choice_of_one_source(impl, dtype):
    read = random_read(9, 7, 64, dtype=dtype)
    query_D = read.query_D / read.query_D.norm() * 1e4
    huge = replace(read, query_D=query_D)
    alpha_S = depth_weights(query_D, read.sources, read.key_weight_D, impl=impl)
    torch.testing.assert_close(alpha_S.max(0).values, torch.ones(7))
    actual = forward_backward(huge, impl)
    chosen_D = torch.stack([v[t] for t, v in enumerate(_chosen(alpha_S, read.sources))])
    torch.testing.assert_close(actual["mix"], chosen_D)
    for name, value in actual.items():
        assert value.isfinite().all(), name


def _chosen(alpha_S: Tensor, sources) -> list[Tensor]:
    return [sources[i] for i in alpha_S.argmax(0).tolist()]


@every_impl
@every_dtype
@pytest.mark.parametrize("n_sources", [40, 187])
def test_no_source_is_dropped(impl, n_sources, dtype):
    sources = [torch.full((2, 4), float(i), dtype=dtype) for i in range(n_sources)]
    read = replace(
        random_read(n_sources, 2, 4, dtype=dtype),
        query_D=torch.zeros(4, dtype=dtype),
        sources=sources,
        upstream_D=torch.ones(2, 4, dtype=dtype),
    )
    actual = forward_backward(read, impl)
    mean_D = torch.full((2, 4), (n_sources - 1) / 2, dtype=dtype)
    torch.testing.assert_close(actual["mix"], mean_D)
    for i in range(n_sources):
        torch.testing.assert_close(actual[f"source {i}"], torch.ones_like(mean_D) / n_sources)


@every_impl
@pytest.mark.parametrize("frozen", list(product([False, True], repeat=4)), ids=str)
def test_freezing_inputs_changes_no_other_gradient(impl, frozen):
    freeze_query, freeze_key_weight, freeze_first, freeze_others = frozen
    read = random_read(3, 4, 8)
    inputs = {"query": read.query_D, "key_weight": read.key_weight_D}
    inputs |= {f"source {i}": source for i, source in enumerate(read.sources)}
    flags = [freeze_query, freeze_key_weight, freeze_first, freeze_others, freeze_others]
    leaves = {
        name: x.clone().requires_grad_(not is_frozen)
        for (name, x), is_frozen in zip(inputs.items(), flags, strict=True)
    }
    query_D, key_weight_D, *sources = leaves.values()
    mix_D = depth_attention(query_D, sources, key_weight_D, impl=impl)
    assert mix_D.requires_grad == (not all(flags))
    expected = forward_backward(read, impl)
    assert torch.equal(mix_D, expected["mix"])
    if mix_D.requires_grad:
        mix_D.backward(read.upstream_D)
    for (name, leaf), is_frozen in zip(leaves.items(), flags, strict=True):
        assert (leaf.grad is None) == is_frozen, name
        if leaf.grad is not None:
            assert torch.equal(leaf.grad, expected[name]), name


@every_impl
@every_dtype
def test_two_runs_are_equal_to_the_bit(impl, dtype):
    read = random_read(9, 3, 50, 64, dtype=dtype)
    first, second = (forward_backward(read, impl) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@every_impl
def test_inputs_are_not_changed(impl):
    read = random_read(3, 4, 8)
    before = [x.clone() for x in (read.query_D, read.key_weight_D, *read.sources)]
    forward_backward(read, impl)
    for x, copy in zip((read.query_D, read.key_weight_D, *read.sources), before, strict=True):
        assert torch.equal(x, copy)


@every_impl
def test_permuting_tokens_permutes_the_mix(impl):
    read = random_read(4, 9, 8)
    order = torch.randperm(9)
    permuted = replace(
        read, sources=[v[order] for v in read.sources], upstream_D=read.upstream_D[order]
    )
    actual, expected = forward_backward(permuted, impl), forward_backward(read, impl)
    torch.testing.assert_close(actual["mix"], expected["mix"][order])
    torch.testing.assert_close(actual["source 2"], expected["source 2"][order])
    torch.testing.assert_close(actual["query"], expected["query"])


class _Blocked(torch.autograd.Function):
    """The identity, whose backward says that there is no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grad_outputs):
        return None


@every_impl
@pytest.mark.parametrize("create_graph", [False, True])
def test_no_gradient_from_above_is_none_or_zero(impl, create_graph):
    read = random_read(2, 3, 4)
    query_D = read.query_D.requires_grad_()
    mix_D = _Blocked.apply(depth_attention(query_D, read.sources, read.key_weight_D, impl=impl))
    (gradient,) = torch.autograd.grad(
        mix_D.sum(), query_D, create_graph=create_graph, allow_unused=True
    )
    assert gradient is None or not gradient.any()
