"""Every implementation: as exact as the reference, for any shape, layout of memory and dtype."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from error_budget import Read, assert_within_budget, forward_backward, random_read
from implementations import IMPLEMENTATIONS, install
from op_budget import assert_op_within_budget, of_weights, random_inputs

from attnres import depth_attention, depth_weights
from attnres.ops.backends import implementation

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    (1, 2, 3, 8),
    (2, 1),
    (3, 7),
    (4, 5, 3),
    (9, 2, 37, 123),
    (5, 2, 3, 4, 6),
    (3, 2, 2, 3, 2, 5),
    (40, 3, 16),
    (187, 2, 24),
    (3, 33, 384),
    (9, 17, 640),
    (4, 3, 7168),
    (3, 0, 8),
    (3, 0, 5, 8),
    (3, 2, 0, 8),
]

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mix_and_gradients_are_as_exact_as_the_reference(impl, shape, dtype):
    n_sources, *size = shape
    assert_within_budget(random_read(n_sources, *size, dtype=dtype), impl)


@every_impl
@every_dtype
@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
def test_epsilon_is_added_to_the_mean_square(impl, eps, dtype):
    read = random_read(4, 6, 24, dtype=dtype)
    assert_within_budget(read, impl, eps)
    if eps > 0:
        assert not torch.equal(
            forward_backward(read, impl, eps)["query"], forward_backward(read, impl, 0.0)["query"]
        )


def _transposed(read: Read) -> Read:
    return replace(read, sources=[s.transpose(0, 1) for s in read.sources])


def _strided(read: Read) -> Read:
    return replace(
        read, sources=[torch.stack([s, s * torch.nan], -1)[..., 0] for s in read.sources]
    )


def _expanded(read: Read) -> Read:
    return replace(read, sources=[s[:1].expand_as(s) for s in read.sources])


def _sliced(read: Read) -> Read:
    """Rows that stand between rows of NaN."""
    sources = [torch.cat([s * torch.nan, s, s * torch.nan], -1) for s in read.sources]
    return replace(read, sources=[s[..., 24:48] for s in sources])


def _channels_first(read: Read) -> Read:
    return replace(read, sources=[s.mT.contiguous().mT for s in read.sources])


@every_impl
@every_dtype
@pytest.mark.parametrize("view", [_transposed, _strided, _expanded, _sliced, _channels_first])
def test_memory_layout_of_sources_is_free(impl, view, dtype):
    read = view(random_read(3, 5, 5, 24, dtype=dtype))
    actual = forward_backward(read, impl)
    packed = forward_backward(replace(read, sources=[s.contiguous() for s in read.sources]), impl)
    for name, value in packed.items():
        torch.testing.assert_close(
            actual[name], value, msg=lambda text, name=name: f"{name} {text}"
        )
    assert_within_budget(read, impl)


@every_impl
def test_one_number_may_stand_for_all_of_a_wide_source(impl):
    read = random_read(4, 64, 1027)
    assert_within_budget(
        replace(read, sources=[s[..., :1].expand_as(s) for s in read.sources]), impl
    )


@every_impl
def test_a_source_may_be_the_negative_of_its_memory(impl):
    z_T1 = torch.randn(4, 1, dtype=torch.complex64)
    source_T1 = z_T1.conj().imag
    assert source_T1.is_neg()
    read = random_read(2, 4, 1)
    assert_within_budget(replace(read, sources=[source_T1, *read.sources]), impl)


@every_impl
@every_dtype
def test_upstream_gradient_may_be_expanded_or_strided(impl, dtype):
    read = random_read(3, 4, 6, dtype=dtype)
    ones_D = torch.ones((), dtype=dtype)
    assert_within_budget(replace(read, upstream_D=ones_D.expand(4, 6)), impl)
    assert_within_budget(replace(read, upstream_D=read.upstream_D.mT.contiguous().mT), impl)


@every_impl
def test_one_tensor_may_be_given_twice_as_a_source(impl):
    read = random_read(3, 4, 6, dtype=torch.float64)
    twice = read.sources[0].clone().requires_grad_()
    other = read.sources[1]
    mix_D = depth_attention(read.query_D, [twice, other, twice], read.key_weight_D, impl=impl)
    (gradient_D,) = torch.autograd.grad(mix_D, twice, read.upstream_D)
    copies = replace(read, sources=[read.sources[0], other, read.sources[0]])
    expected = forward_backward(copies, "reference")
    torch.testing.assert_close(mix_D, expected["mix"])
    torch.testing.assert_close(gradient_D, expected["source 0"] + expected["source 2"])


@every_impl
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_mix_has_the_widest_dtype_of_the_sources(impl, wide, place):
    read = random_read(3, 4, 6, dtype=torch.bfloat16)
    sources = list(read.sources)
    sources[place] = sources[place].to(wide)
    mixed = replace(read, sources=sources, upstream_D=read.upstream_D.to(wide))
    actual = forward_backward(mixed, impl)
    exact = forward_backward(read.to(wide), "reference")
    assert actual["mix"].dtype == wide
    torch.testing.assert_close(actual["mix"], exact["mix"])
    for i, source in enumerate(sources):
        gradient_D = actual[f"source {i}"]
        assert gradient_D.dtype == source.dtype
        torch.testing.assert_close(gradient_D, exact[f"source {i}"].to(source.dtype))
    for name in ("query", "key_weight"):
        assert actual[name].dtype == torch.bfloat16
        torch.testing.assert_close(actual[name], exact[name].to(torch.bfloat16))


@every_impl
def test_float16_and_bfloat16_meet_in_float32(impl):
    sources = [torch.randn(4, dtype=torch.float16), torch.randn(4, dtype=torch.bfloat16)]
    mix_D = depth_attention(torch.zeros(4), sources, torch.ones(4), impl=impl)
    assert mix_D.dtype == torch.float32
    torch.testing.assert_close(mix_D, (sources[0].float() + sources[1].float()) / 2)


@every_impl
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_weights_are_those_of_the_mix_in_the_dtype_of_the_arithmetic(impl, dtype):
    read = random_read(5, 2, 3, 8, dtype=dtype)
    alpha_S = depth_weights(read.query_D, read.sources, read.key_weight_D, impl=impl)
    assert alpha_S.shape == (5, 2, 3)
    assert alpha_S.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(alpha_S.sum(dim=0), torch.ones(2, 3, dtype=alpha_S.dtype))
    mix_D = sum(a.unsqueeze(-1) * v for a, v in zip(alpha_S, read.sources, strict=True))
    assert isinstance(mix_D, torch.Tensor)
    torch.testing.assert_close(forward_backward(read, impl)["mix"], mix_D.to(dtype))


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", [(3, 5, 5, 1), (1, 2, 3, 3), (1, 9, 2, 37, 123)], ids=str)
def test_weights_and_their_gradients_are_as_exact_as_the_reference(impl, shape, dtype):
    """Queries, of which the first reads, sources, then the shape of a source."""
    assert_op_within_budget(of_weights, random_inputs(*shape, dtype=dtype), impl)


@every_impl
@pytest.mark.parametrize("name", ["query", "key_weight", "eps", "one source", "one gradient"])
def test_the_budget_catches_a_small_fault(impl, name, monkeypatch):
    """In float32: what a test of numbers is worth is the fault that it sees."""
    honest = implementation(impl, torch.device("cpu")).depth_attention

    def faulty(query_D, sources, key_weight_D, eps):
        first, *rest = sources
        if name == "query":
            query_D = query_D * 1.01
        if name == "key_weight":
            key_weight_D = key_weight_D * 0.99
        if name == "one source":
            first = first * 0.99
        if name == "one gradient":
            first = first.detach() + 0.99 * (first - first.detach())
        return honest(query_D, [first, *rest], key_weight_D, eps * 1e4 if name == "eps" else eps)

    install(monkeypatch, "faulty", SimpleNamespace(depth_attention=faulty))
    with pytest.raises(AssertionError, match="budget"):
        assert_within_budget(random_read(9, 8, 24), "faulty")
