"""Attention over depth around a given sum: exact at zero queries, S times the mix elsewhere."""

import pytest
import torch
from error_budget import EPS, Read, assert_as_good_as, random_read, stack_sources
from implementations import KERNELS
from torch import Tensor

from attnres import depth_attention
from attnres.ops import centered_attention

SHAPES = [
    (1, 1, 1, 8),
    (3, 2, 37, 123),
    (9, 1, 64, 512),
    (2, 5, 3),
    (4, 0, 3),
    (5, 7, 1),
    (49, 2, 3),
]
all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def forward_backward(read: Read, impl: str) -> dict[str, Tensor]:
    """The output, and the gradients of the query, the key weight, the stream and every source."""
    query_D = read.query_D.detach().requires_grad_()
    key_weight_D = read.key_weight_D.detach().requires_grad_()
    sources = [source.detach().requires_grad_() for source in read.sources]
    stream_D = torch.stack(list(read.sources)).sum(dim=0).requires_grad_()
    out_D = centered_attention(query_D, sources, stream_D, key_weight_D, eps=EPS, impl=impl)
    inputs = [query_D, key_weight_D, stream_D, *sources]
    gradients = torch.autograd.grad(out_D, inputs, read.upstream_D)
    names = ["query", "key_weight", "stream", *(f"source {i}" for i in range(len(sources)))]
    return {"out": out_D.detach(), **dict(zip(names, gradients, strict=True))}


@all_shapes
@pytest.mark.parametrize("impl", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_every_gradient_are_within_the_budget(shape, impl, dtype):
    read = random_read(*shape).to(dtype)
    actual = stack_sources(forward_backward(read, impl))
    plain = stack_sources(forward_backward(read, "reference"))
    exact = stack_sources(forward_backward(read.to(torch.float64), "reference"))
    for name in exact:
        assert_as_good_as(actual[name], plain[name], exact[name], name)


@all_shapes
@pytest.mark.parametrize("impl", ["reference", *KERNELS])
def test_it_is_the_mix_times_the_number_of_sources(shape, impl):
    read = random_read(*shape, dtype=torch.float64)
    actual = forward_backward(read, impl)["out"]
    mix_D = depth_attention(read.query_D, read.sources, read.key_weight_D, eps=EPS)
    torch.testing.assert_close(actual, shape[0] * mix_D, rtol=1e-12, atol=1e-12)


@all_shapes
@pytest.mark.parametrize("impl", ["reference", *KERNELS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_zero_query_gives_the_stream_and_its_gradient_bit_for_bit(shape, impl, dtype):
    read = random_read(*shape).to(dtype)
    read = Read(
        query_D=torch.zeros_like(read.query_D),
        key_weight_D=read.key_weight_D,
        sources=read.sources,
        upstream_D=read.upstream_D,
    )
    found = forward_backward(read, impl)
    assert torch.equal(found["out"], torch.stack(list(read.sources)).sum(dim=0))
    assert torch.equal(found["stream"], read.upstream_D)
    if impl != "reference":
        assert not any(found[f"source {i}"].any() for i in range(shape[0]))
    if shape[0] > 1 and found["out"].numel():
        assert found["query"].any()


@pytest.mark.parametrize("impl", ["reference", *KERNELS])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_source_that_is_not_finite_makes_its_token_nan_and_no_other(impl, bad):
    read = random_read(3, 5, 4)
    read.sources[1][2, 3] = bad
    stream_TD = torch.ones(5, 4)
    args = (read.query_D * 0, read.sources, stream_TD, read.key_weight_D)
    out_TD = centered_attention(*args, impl=impl)
    assert out_TD[2].isnan().all()
    assert torch.equal(out_TD[[0, 1, 3, 4]], stream_TD[[0, 1, 3, 4]])


@pytest.mark.parametrize("impl", ["reference", *KERNELS])
def test_first_and_second_derivatives(impl):
    read = random_read(3, 2, 4, dtype=torch.float64)

    def run(query_D, key_weight_D, stream_D, *sources):
        return centered_attention(query_D, sources, stream_D, key_weight_D, impl=impl)

    tensors = [read.query_D, read.key_weight_D, torch.randn(2, 4, dtype=torch.float64)]
    inputs = [x.clone().requires_grad_() for x in (*tensors, *read.sources)]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
    upstream_D = torch.randn(2, 4, dtype=torch.float64)
    once = torch.autograd.grad(run(*inputs), inputs, upstream_D)
    again = torch.autograd.grad(run(*inputs), inputs, upstream_D, create_graph=True)
    for first, second in zip(once, again, strict=True):
        torch.testing.assert_close(first, second)


def test_nothing_as_wide_as_the_model_is_saved_beyond_the_sources():
    read = random_read(5, 6, 256).to(torch.bfloat16)
    sources = [source.requires_grad_() for source in read.sources]
    stream_D = torch.randn(6, 256).bfloat16().requires_grad_()
    known = {x.data_ptr() for x in sources}
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        centered_attention(read.query_D, sources, stream_D, read.key_weight_D)
    wide = [x for x in saved if x.numel() >= 6 * 256 and x.data_ptr() not in known]
    assert len(saved) > 5
    assert not wide


@pytest.mark.parametrize(
    "stream_D", [torch.ones(3, 5), torch.ones(4), None, torch.ones(2, 3).int()]
)
def test_a_stream_that_does_not_fit_is_refused(stream_D):
    source_TD, query_D = torch.ones(2, 3), torch.zeros(3)
    with pytest.raises(ValueError, match="stream_D"):
        centered_attention(query_D, [source_TD, source_TD], stream_D, query_D)
