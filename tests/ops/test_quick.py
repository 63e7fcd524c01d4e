"""The short way of a read without gradients: the same numbers, and nothing that needs care."""

from collections.abc import Sequence

import pytest
import torch
from error_budget import EPS, Read, assert_as_good_as, random_read
from implementations import needs_compiler, needs_cpu_kernel
from torch import Tensor, nn

from attnres import depth_attention
from attnres.ops import centered_attention, cpu, cpu_build, quick, reference
from attnres.ops.cpu import CpuKernel

pytestmark = needs_cpu_kernel
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def inputs_of(read: Read) -> tuple[Tensor, Sequence[Tensor], Tensor]:
    return read.query_D, read.sources, read.key_weight_D


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("n_sources", "shape"), [(1, (1, 1, 8)), (5, (2, 3, 123)), (9, (1, 4096)), (40, (3, 1))]
)
def test_the_mix_is_that_of_the_long_way_bit_for_bit(n_sources, shape, wide, dtype):
    read = random_read(n_sources, *shape, dtype=dtype)
    parameters = [read.query_D, read.key_weight_D]
    if wide:
        parameters = [x.to(torch.promote_types(dtype, torch.float32)) for x in parameters]
    query_D, key_weight_D = parameters
    expected = depth_attention(query_D.requires_grad_(), read.sources, key_weight_D, impl="cpu")
    with torch.no_grad():
        mix_D = quick.mix(query_D, read.sources, key_weight_D, EPS, "cpu")
    assert mix_D is not None
    assert mix_D.dtype == dtype
    assert torch.equal(mix_D, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_sources", "shape"), [(1, (1, 1, 8)), (5, (2, 3, 123)), (9, (1, 512))])
def test_a_read_around_a_stream_is_that_of_the_long_way(n_sources, shape, dtype):
    read = random_read(n_sources, *shape, dtype=dtype)
    stream_D = sum(read.sources[1:], read.sources[0])
    query_D, sources, key_weight_D = inputs_of(read)
    given = sources, stream_D, key_weight_D
    expected = centered_attention(query_D.requires_grad_(), *given, impl="cpu")
    with torch.no_grad():
        arguments = query_D, sources, stream_D, key_weight_D, EPS
        mix_D = quick.around(*arguments, "cpu")
        assert mix_D is not None
        assert quick.around(query_D, sources, stream_D[:0], *arguments[3:], "cpu") is None
        assert quick.around(query_D, sources, views(stream_D), *arguments[3:], "cpu") is None
        zero_D = torch.zeros_like(query_D)
        assert torch.equal(centered_attention(zero_D, *given, impl="cpu"), stream_D)
    assert torch.equal(mix_D, expected)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("variant", cpu_build.variants()[1:])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)  # float64 has no finer oracle
def test_every_variant_of_the_kernel_gives_the_mix(dtype, variant, tmp_path_factory):
    file = cpu_build.library(variant, tmp_path_factory.getbasetemp() / "variants")
    kernel = CpuKernel(variant, file, f"cpu_mix_{variant}_{DTYPES.index(dtype)}")
    read = random_read(5, 2, 3, 123, dtype=dtype)
    inputs, exact = inputs_of(read), inputs_of(read.to(torch.float64))
    query_D, sources, key_weight_D = inputs
    found = kernel.quick.read([query_D], [key_weight_D], [*sources], EPS)
    assert found is not None
    (mix_D,) = found.mixes
    plain, exact = (reference.depth_attention(*x, EPS) for x in (inputs, exact))
    assert_as_good_as(mix_D, plain, exact, variant)


def test_public_reads_without_gradients_go_this_way(monkeypatch):
    monkeypatch.delenv("ATTNRES_IMPL", raising=False)
    read = random_read(3, 2, 8)
    depth_attention(*inputs_of(read), impl="cpu")  # loads the kernel

    def long_way(*_):
        raise AssertionError("a read without gradients went the long way")

    monkeypatch.setattr(CpuKernel, "forward", long_way)
    with torch.inference_mode():
        depth_attention(nn.Parameter(read.query_D), read.sources, read.key_weight_D)
    with pytest.raises(AssertionError, match="long way"):
        depth_attention(*inputs_of(read))


def views(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=-1)[..., 0]


class Tagged(Tensor):
    pass


CAREFUL = {
    "strides": lambda r: (r.query_D, [views(x) for x in r.sources], r.key_weight_D),
    "a query with strides": lambda r: (views(r.query_D), r.sources, r.key_weight_D),
    "dtypes": lambda r: (r.query_D, [r.sources[0].double(), *r.sources[1:]], r.key_weight_D),
    "parameters' dtypes": lambda r: (r.query_D, r.sources, r.key_weight_D.double()),
    "wide parameters": lambda r: (r.query_D.double(), r.sources, r.key_weight_D.double()),
    "a stack": lambda r: (r.query_D, torch.stack(list(r.sources)), r.key_weight_D),
    "no source": lambda r: (r.query_D, [], r.key_weight_D),
    "no token": lambda r: (r.query_D, [x[:0] for x in r.sources], r.key_weight_D),
    "no axis": lambda r: (r.query_D[0], [x[0, 0] for x in r.sources], r.key_weight_D[0]),
    "shapes": lambda r: (r.query_D, [r.sources[0][:1], *r.sources[1:]], r.key_weight_D),
    "widths": lambda r: (r.query_D[1:], r.sources, r.key_weight_D[1:]),
    "no tensor": lambda r: (r.query_D, [1.0, 2.0], r.key_weight_D),
    "a subclass": lambda r: (r.query_D, [x.as_subclass(Tagged) for x in r.sources], r.key_weight_D),
    "the meta device": lambda r: (r.query_D, [x.to("meta") for x in r.sources], r.key_weight_D),
}


@pytest.mark.parametrize("given", CAREFUL.values(), ids=CAREFUL)
def test_what_needs_care_goes_the_long_way(given):
    read = random_read(3, 2, 8)
    with torch.no_grad():
        assert quick.mix(*inputs_of(read), EPS, "cpu") is not None
        query_D, sources, key_weight_D = given(read)
        assert quick.mix(query_D, sources, key_weight_D, EPS, "cpu") is None


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf"), "1e-6"])
def test_an_epsilon_that_is_none_goes_the_long_way(eps):
    read = random_read(3, 2, 8)
    with torch.no_grad():
        assert quick.mix(*inputs_of(read), eps, "cpu") is None
        with pytest.raises(ValueError, match="eps"):
            depth_attention(*inputs_of(read), eps=eps)


def test_another_implementation_is_never_replaced(monkeypatch):
    read = random_read(3, 2, 8)
    inputs = (*inputs_of(read), EPS)
    monkeypatch.setenv("ATTNRES_IMPL", "reference")
    with torch.no_grad():
        assert quick.mix(*inputs, "closed_form") is None
        assert quick.mix(*inputs, None) is None
        assert quick.mix(*inputs, "cpu") is not None


def test_threads_change_nothing():
    read = random_read(9, 64, 512)
    mixes: list[Tensor] = []
    threads = torch.get_num_threads()
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found = cpu.kernel().quick.read([read.query_D], [read.key_weight_D], [*read.sources], EPS)
        assert found is not None
        mixes += found.mixes
    torch.set_num_threads(threads)
    assert torch.equal(mixes[0], mixes[1])
    assert torch.equal(mixes[0], mixes[2])
