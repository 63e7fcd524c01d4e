"""Sources in one tensor, a stack [S, ..., D] or a token-major bank [T, S, D], are read in place."""

from collections.abc import Callable

import pytest
import torch
from implementations import IMPLEMENTATIONS, KERNELS, needs_cpu_kernel
from torch import Tensor

from attnres import depth_attention, depth_weights
from attnres.ops import depth_attention_queries
from attnres.ops.backends import implementation

N_QUERIES, N_SOURCES, DIM = 3, 4, 24
every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str
)
PLACES = [
    ((N_SOURCES, 5, DIM), 0),
    ((N_SOURCES, 2, 5, DIM), 0),
    ((N_SOURCES, DIM), 0),
    ((5, N_SOURCES, DIM), -2),
    ((5, N_SOURCES, DIM), 1),
    ((2, 5, N_SOURCES, DIM), -2),
    ((2, N_SOURCES, 0, DIM), -3),
    ((2, N_SOURCES, 5, DIM), 1),
]
every_place = pytest.mark.parametrize(("shape", "source_dim"), PLACES, ids=str)


def _weights(query, sources, key_weight, **options):
    return depth_weights(query[0], sources, key_weight[0], **options)


def _mix(query, sources, key_weight, **options):
    return depth_attention(query[0], sources, key_weight[0], **options)


def _queries(query, sources, key_weight, **options):
    mix_QD, lse_Q = depth_attention_queries(query, sources, key_weight, **options)
    return torch.cat([mix_QD.flatten(), lse_Q.flatten().to(mix_QD.dtype)])


every_op = pytest.mark.parametrize("op", [_mix, _weights, _queries])


def _readers(dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(N_QUERIES, DIM, dtype=dtype).requires_grad_() for _ in range(2)]


def _gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, inputs, upstream)


@every_impl
@every_op
@every_dtype
@every_place
def test_one_tensor_equals_the_list_of_its_sources(impl, op, dtype, shape, source_dim):
    query, key_weight = _readers(dtype)
    bank = torch.randn(shape, dtype=dtype).requires_grad_()
    sources = [v.detach().contiguous().requires_grad_() for v in bank.unbind(source_dim)]
    actual = op(query, bank, key_weight, source_dim=source_dim, impl=impl)
    expected = op(query, sources, key_weight, impl=impl)
    torch.testing.assert_close(actual, expected)
    in_one = _gradients(actual, [query, key_weight, bank])
    apart = _gradients(expected, [query, key_weight, *sources])
    stacked = torch.stack(apart[2:], source_dim if source_dim >= 0 else source_dim + len(shape))
    for value, other in zip(in_one, (*apart[:2], stacked), strict=True):
        torch.testing.assert_close(value, other)


@pytest.mark.parametrize("impl", KERNELS)
@pytest.mark.parametrize("op", [_mix, _queries])
def test_a_bank_is_saved_itself_and_nothing_as_wide(impl, op):
    bank = torch.randn(64, N_SOURCES, 512).requires_grad_()
    query = torch.randn(N_QUERIES, 512).requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        op(query, bank, torch.ones(N_QUERIES, 512), source_dim=-2, impl=impl)
    wide = {x.data_ptr() for x in saved if x.numel() >= 64 * 512}
    assert wide == {bank.data_ptr()}


def _addresses_read(monkeypatch, call: Callable[[], object]) -> list[int]:
    """Of the tensors that the CPU kernel is given, forward and backward."""
    from attnres.ops import cpu

    found: list[int] = []
    rows = cpu._rows

    def noting(x: Tensor):
        result = rows(x)
        found.append(result.tensor.data_ptr())
        assert not result.is_copy
        return result

    monkeypatch.setattr(cpu, "_rows", noting)
    call()
    return found


@needs_cpu_kernel
@pytest.mark.parametrize(("shape", "source_dim"), PLACES[:-1], ids=str)  # the last has two strides
def test_the_cpu_kernel_reads_and_writes_a_bank_in_place(monkeypatch, shape, source_dim):
    implementation("cpu", torch.device("cpu"))
    bank = torch.randn(shape).requires_grad_()
    query, key_weight = _readers(torch.float32)

    def call():
        out = _queries(query, bank, key_weight, source_dim=source_dim, impl="cpu")
        out.sum().backward()

    addresses = _addresses_read(monkeypatch, call)
    sources = {v.data_ptr() for v in bank.unbind(source_dim)}
    assert sources <= set(addresses)


@every_impl
def test_a_bank_that_is_sliced_from_a_longer_one(impl):
    """As a cache that is filled up: the rest is NaN."""
    whole = torch.full((5, 9, DIM), torch.nan)
    whole[:, :N_SOURCES] = torch.randn(5, N_SOURCES, DIM)
    bank = whole[:, :N_SOURCES].detach().requires_grad_()
    query, key_weight = _readers(torch.float32)
    out = _queries(query, bank, key_weight, source_dim=-2, impl=impl)
    packed = bank.detach().contiguous().requires_grad_()
    expected = _queries(query, packed, key_weight, source_dim=-2, impl=impl)
    assert torch.equal(out, expected)
    for value, other in zip(
        _gradients(out, [query, bank]), _gradients(expected, [query, packed]), strict=True
    ):
        torch.testing.assert_close(value, other)


def _read_bank(query_D, bank, key_weight_D, impl):
    return depth_attention(query_D, bank, key_weight_D, source_dim=-2, impl=impl)


@every_impl
def test_a_traced_read_of_a_bank_equals_eager(impl):
    torch._dynamo.reset()
    compiled = torch.compile(_read_bank, fullgraph=True, backend="aot_eager")
    inputs = [torch.randn(s).requires_grad_() for s in ((DIM,), (5, N_SOURCES, DIM), (DIM,))]
    actual, expected = compiled(*inputs, impl=impl), _read_bank(*inputs, impl=impl)
    torch.testing.assert_close(actual, expected)
    for value, other in zip(_gradients(actual, inputs), _gradients(expected, inputs), strict=True):
        torch.testing.assert_close(value, other)
