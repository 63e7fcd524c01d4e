"""The C++ kernel by itself: every variant, thread count and way of writing is as exact."""

from dataclasses import replace

import pytest
import torch
from implementations import needs_compiler, needs_cpu_kernel
from kernel_budget import assert_kernel_within_budget, random_case, run, run_reference

from attnres.ops import cpu, cpu_build, cpu_quick
from attnres.ops.cpu import CpuKernel
from attnres.ops.kernel import Upstream

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = needs_cpu_kernel

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
given_or_not = pytest.mark.parametrize("with_given", [False, True])


@every_dtype
@given_or_not
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 2, 3, 8),
        (1, 2, 1),
        (1, 3, 2, 37, 123),
        (2, 4, 30, 3),
        (3, 3, 5, 123),
        (4, 2, 60, 1),
        (5, 9, 17, 640),
        (12, 3, 70, 33),
        (1, 4, 3, 7168),
        (2, 3, 0, 16),
    ],
    ids=str,
)
def test_outputs_and_gradients_are_as_exact_as_the_reference(shape, with_given, dtype):
    """Queries, sources, leading axes, D."""
    assert_kernel_within_budget(
        cpu.kernel(), random_case(*shape, dtype=dtype, with_given=with_given)
    )


@given_or_not
def test_float64_is_computed_in_float64(with_given):
    case = random_case(3, 4, 7, 45, dtype=torch.float64, with_given=with_given)
    exact = run_reference(case)
    for name, value in run(cpu.kernel(), case).items():
        torch.testing.assert_close(value, exact[name], atol=1e-12, rtol=1e-12)


@every_dtype
@pytest.mark.parametrize("n_queries", [1, 6])
def test_buffers_are_added_to_where_asked(n_queries, dtype):
    case = random_case(n_queries, 5, 41, 72, dtype=dtype)
    assert_kernel_within_budget(cpu.kernel(), case, accumulate=[True, False, True, True, False])


@pytest.mark.parametrize("needed", [(True, False, True), (False, False, False)])
@pytest.mark.parametrize("needs_folded", [True, False])
def test_what_is_not_asked_for_is_not_computed_and_changes_nothing(needed, needs_folded):
    case = random_case(2, 3, 19, 40, with_given=True)
    everything = run(cpu.kernel(), case)
    part = assert_kernel_within_budget(cpu.kernel(), case, needed=needed, needs_folded=needs_folded)
    for name, value in part.items():
        assert torch.equal(value, everything[name]), name


@given_or_not
def test_upstream_gradients_may_be_absent(with_given):
    case = random_case(3, 4, 9, 20, with_given=with_given)
    first, _, last = case.upstream.mixes
    for upstream in (
        Upstream([first, None, last], case.upstream.lse_Q),
        Upstream([first, None, last], None),
        Upstream([None] * 3, case.upstream.lse_Q),
    ):
        assert_kernel_within_budget(cpu.kernel(), replace(case, upstream=upstream))


@every_dtype
@pytest.mark.parametrize("dim", [64, 96, 100])
def test_writing_past_the_caches_changes_nothing(dim, dtype, monkeypatch):
    """Rows of 100 numbers are not aligned and go the other way."""
    case = random_case(3, 4, 50, dim, dtype=dtype)
    plain = run(cpu.kernel(), case)
    monkeypatch.setattr(cpu, "STREAM_BYTES", 0)
    for name, value in run(cpu.kernel(), case).items():
        assert torch.equal(value, plain[name]), name


@every_dtype
@pytest.mark.parametrize("n_queries", [1, 5])
def test_the_number_of_threads_changes_nothing(n_queries, dtype, monkeypatch):
    monkeypatch.setattr(cpu_quick, "NUMBERS_A_THREAD", 1)
    case = random_case(n_queries, 3, 211, 40, dtype=dtype, with_given=True)
    n_threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3, 7):
            torch.set_num_threads(n)
            runs.append(run(cpu.kernel(), case))
    finally:
        torch.set_num_threads(n_threads)
    for other in runs[1:]:
        for name, value in runs[0].items():
            assert torch.equal(value, other[name]), name


@every_dtype
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_nan_stays_one_whatever_its_bits(bits, dtype):
    """Rounding by integers to bfloat16 would carry the last two over into zeros."""
    case = random_case(2, 3, 4, 24, dtype=dtype, with_given=True)
    nan = torch.tensor(bits - (1 << 32 if bits >> 31 else 0), dtype=torch.int32).view(torch.float32)
    case.folded_QD[0, 5] = nan
    actual = run(cpu.kernel(), case)
    assert actual["mix"][0].isnan().all()
    assert actual["lse"][0].isnan().all()
    assert actual["mix"][1].isfinite().all()
    assert actual["gradient of source 0"].isnan().all()
    assert case.given is not None
    case.folded_QD[0, 5] = 0
    case.given.lse_Q[1, 2] = nan
    actual = run(cpu.kernel(), case)
    assert actual["mix"][1, 2].isnan().all()
    assert actual["mix"][0].isfinite().all()


@every_dtype
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_spoils_its_token_alone(value, dtype):
    case = random_case(1, 3, 6, 24, dtype=dtype)
    case.sources[1][2, 7] = value
    actual = run(cpu.kernel(), case)
    assert not actual["mix"][0, 2].isfinite().all()
    others = [0, 1, 3, 4, 5]
    assert actual["mix"][0, others].isfinite().all()
    assert actual["gradient of source 0"][others].isfinite().all()


@every_dtype
def test_numbers_are_rounded_as_torch_rounds_them(dtype):
    """The mean of two: in 16 bits half of them are ties."""
    case = random_case(1, 2, 64, 48, dtype=dtype)
    case = replace(case, folded_QD=torch.zeros(1, 48), upstream=Upstream([case.sources[1]], None))
    actual = run(cpu.kernel(), case)
    a, b = (source.float() for source in case.sources)
    assert torch.equal(actual["mix"][0], ((a + b) / 2).to(dtype))
    assert torch.equal(actual["gradient of source 0"], (b / 2).to(dtype))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("variant", cpu_build.variants()[1:])
@every_dtype
def test_every_variant_that_this_processor_runs_is_as_exact(variant, dtype, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "variants"
    file = cpu_build.library(variant, folder)
    kernel = CpuKernel(variant, file, f"cpu_read_{variant}_{DTYPES.index(dtype)}")
    for shape in ((1, 3, 2, 37, 123), (5, 9, 17, 64), (4, 2, 60, 1)):
        for with_given in (False, True):
            case = random_case(*shape, dtype=dtype, with_given=with_given)
            assert_kernel_within_budget(kernel, case)
            assert_kernel_within_budget(kernel, case, accumulate=[True] * len(case.sources))
