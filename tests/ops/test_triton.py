"""The Triton kernel: interpreted on the CPU, or on a GPU where ATTNRES_TEST_DEVICE=cuda."""

import os
import sys
from dataclasses import replace

import pytest
import torch
from kernel_budget import Case, assert_kernel_within_budget, random_case, run

from attnres.ops.kernel import Given, Upstream

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

from attnres.ops import triton as kernel

DEVICE = os.environ.get("ATTNRES_TEST_DEVICE", "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def case_of(*shape: int, dtype: torch.dtype = torch.float32, with_given: bool = False) -> Case:
    return random_case(*shape, dtype=dtype, with_given=with_given, device=DEVICE)


@every_dtype
@pytest.mark.parametrize("with_given", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 2, 3, 8),
        (1, 3, 2, 37, 123),
        (1, 9, 17, 640),
        (3, 3, 5, 123),
        (4, 2, 60, 1),
        (2, 4, 30, 3),
        (1, 2, 1),
        (12, 3, 7),
    ],
    ids=str,
)
def test_outputs_and_gradients_are_as_exact_as_the_reference(shape, with_given, dtype):
    """Queries, sources, leading axes, D."""
    assert_kernel_within_budget(kernel, case_of(*shape, dtype=dtype, with_given=with_given))


@pytest.mark.parametrize(
    "shape",
    [(1, 40, 70, 16), (1, 187, 2, 24), (2, 40, 3, 24), (1, 3, 33, 384), (1, 5, 150, 24)],
    ids=str,
)
def test_many_sources_and_many_tokens(shape):
    assert_kernel_within_budget(kernel, case_of(*shape))


@pytest.mark.parametrize("n_queries", [1, 2])
def test_wide_sources_go_in_parts(n_queries):
    assert_kernel_within_budget(kernel, case_of(n_queries, 4, 3, 7168, dtype=torch.bfloat16))


def test_a_row_too_wide_for_registers_is_swept_twice(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_ONLINE_DIM", 64)
    assert_kernel_within_budget(kernel, case_of(1, 4, 5, 123))
    assert_kernel_within_budget(kernel, case_of(1, 2, 5, 123, with_given=True))


@pytest.mark.parametrize("n_queries", [1, 3])
@pytest.mark.parametrize("with_given", [False, True])
def test_tiles_of_a_gpu_give_the_same(n_queries, with_given, monkeypatch):
    for name in ("online_tile", "sweep_tile"):
        of_gpu = getattr(kernel, name)
        monkeypatch.setattr(kernel, name, lambda *x, of_gpu=of_gpu: of_gpu(*x, interpreted=False))
    case = case_of(n_queries, 3, 5, 384, dtype=torch.bfloat16, with_given=with_given)
    assert_kernel_within_budget(kernel, case)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_epsilon_is_added_to_the_mean_square(eps):
    assert_kernel_within_budget(kernel, case_of(1, 4, 6, 24), eps)
    assert_kernel_within_budget(kernel, case_of(2, 4, 6, 24), eps)


@every_dtype
def test_a_buffer_is_overwritten_or_added_to(dtype):
    accumulate = [True, False, True, True, False]
    case = case_of(1, 5, 3, 40, dtype=dtype)
    assert_kernel_within_budget(kernel, case, accumulate=accumulate)
    case = case_of(3, 5, 3, 40, dtype=dtype, with_given=True)
    assert_kernel_within_budget(kernel, case, accumulate=accumulate)


@pytest.mark.parametrize("needs_folded", [False, True])
def test_only_what_is_needed_is_filled(needs_folded):
    needed = [False, True, False]
    case = case_of(2, 3, 4, 24)
    assert_kernel_within_budget(kernel, case, needed=needed, needs_folded=needs_folded)
    assert_kernel_within_budget(kernel, case, needed=[False] * 3, needs_folded=needs_folded)


@pytest.mark.parametrize("with_given", [False, True])
def test_an_upstream_gradient_may_be_missing(with_given):
    case = case_of(3, 3, 4, 24, with_given=with_given)
    mixes, lse_Q = case.upstream
    some = [mixes[0], None, mixes[2]]
    for upstream in (Upstream(mixes, None), Upstream(some, lse_Q), Upstream([None] * 3, lse_Q)):
        assert_kernel_within_budget(kernel, replace(case, upstream=upstream))


def _strided(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x * torch.nan], -1)[..., 0]


def _sliced(x: torch.Tensor) -> torch.Tensor:
    """Rows that stand between rows of NaN."""
    return torch.cat([x * torch.nan, x, x * torch.nan], -1)[..., 24:48]


def _odd(x: torch.Tensor) -> torch.Tensor:
    """As sliced, but no row begins at a multiple of 16 bytes."""
    return torch.cat([x[..., :1] * torch.nan, x, x[..., :2] * torch.nan], -1)[..., 1:25]


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1)


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand_as(x)


VIEWS = [_strided, _sliced, _odd, _transposed, _expanded]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n_queries", [1, 2])
def test_memory_layout_of_what_is_read_is_free(view, n_queries):
    case = case_of(n_queries, 3, 5, 5, 24, with_given=n_queries == 2)
    mixes = [e for e in case.upstream.mixes if e is not None]
    lse_Q = case.folded_QD[:, :1, None].expand(n_queries, 5, 5)
    viewed = replace(
        case,
        sources=[view(x) for x in case.sources],
        upstream=Upstream([view(e) for e in mixes], lse_Q),
        given=case.given and Given(*(_transposed(x.transpose(0, 1)) for x in case.given)),
    )
    packed = replace(
        viewed,
        sources=[x.contiguous() for x in viewed.sources],
        upstream=Upstream([view(e).contiguous() for e in mixes], lse_Q),
    )
    actual, expected = assert_kernel_within_budget(kernel, viewed), run(kernel, packed)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, msg=name)


def test_sources_of_a_row_stride_are_not_copied():
    bank = torch.randn(6, 3, 24, device=DEVICE)
    for source in bank.unbind(1):
        assert kernel._as_rows(source).data_ptr() == source.data_ptr()
    pairs = torch.randn(4, 2, 3, 24, device=DEVICE)[:, 0]
    assert kernel._as_rows(pairs).data_ptr() != pairs.data_ptr()


def test_a_buffer_may_have_any_strides():
    case = case_of(1, 3, 4, 5, 24)
    expected = run(kernel, case, accumulate=[True] * 3)
    views = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in case.before]
    buffers = [torch.empty(4, 5, 48, device=DEVICE)[..., :24].copy_(x) for x in case.before]
    result = kernel.forward(case.folded_QD, case.sources, None, 1e-6)
    for into in (views, buffers):
        _backward(case, result.saved, into, [True] * 3)
        for i, buffer in enumerate(into):
            assert torch.equal(buffer, expected[f"gradient of source {i}"])


def _backward(case: Case, saved, buffers, accumulate, needs_folded: bool = True):
    into = kernel.SourceGradients(buffers, accumulate)
    arguments = (case.upstream, case.folded_QD, case.sources, case.given, saved, into)
    return kernel.backward(*arguments, needs_folded)


@every_dtype
@pytest.mark.parametrize("n_queries", [1, 3])
def test_one_source_comes_back_bit_for_bit(n_queries, dtype):
    case = case_of(n_queries, 1, 5, 123, dtype=dtype)
    case.sources[0].view(-1)[::7] = -0.0
    case = replace(case, upstream=Upstream(case.upstream.mixes, None))
    result = kernel.forward(case.folded_QD, case.sources, None, 1e-6)
    for mix_D in result.mix_QD:
        assert torch.equal(mix_D.view(torch.uint8), case.sources[0].view(torch.uint8))
    assert torch.equal(result.lse_Q, result.saved[1].squeeze(-1))
    buffer_D = torch.empty_like(case.sources[0])
    folded_gradient_QD, *_ = _backward(case, result.saved, [buffer_D], [False])
    assert folded_gradient_QD is not None
    assert torch.equal(folded_gradient_QD, torch.zeros_like(case.folded_QD))
    (upstream_D, *others) = case.upstream.mixes
    assert others or (upstream_D is not None and torch.equal(buffer_D, upstream_D))


def test_two_runs_are_equal_to_the_bit():
    case = case_of(2, 9, 130, 24, dtype=torch.bfloat16, with_given=True)
    first, second = run(kernel, case), run(kernel, case)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("n_queries", [1, 2])
@pytest.mark.parametrize("with_given", [False, True])
def test_a_huge_query_gives_finite_numbers(n_queries, with_given):
    case = case_of(n_queries, 5, 4, 24, with_given=with_given)
    case = replace(case, folded_QD=case.folded_QD * 1e4)
    for name, value in assert_kernel_within_budget(kernel, case).items():
        assert value.isfinite().all(), name


@pytest.mark.parametrize("n_queries", [1, 2])
def test_nan_stays_in_its_token(n_queries):
    case = case_of(n_queries, 3, 4, 24)
    case.sources[1][2, 5] = torch.nan
    tensors = run(kernel, case)
    for name in ("mix", "lse"):
        found = tensors[name].isnan().reshape(n_queries, 4, -1)
        assert found[:, 2].all(), name
        assert not found[:, [0, 1, 3]].any(), name
    for i in range(3):
        assert tensors[f"gradient of source {i}"].isnan().any(dim=-1).tolist() == [
            False,
            False,
            True,
            False,
        ]


@every_dtype
@pytest.mark.parametrize("with_given", [False, True])
@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 5)], ids=str)
def test_zero_tokens(lead, with_given, dtype):
    case = case_of(2, 3, *lead, 8, dtype=dtype, with_given=with_given)
    tensors = assert_kernel_within_budget(kernel, case)
    assert torch.equal(tensors["folded gradient"], torch.zeros_like(case.folded_QD))


def test_saved_are_two_statistics_token_by_token():
    case = case_of(2, 3, 4, 5, 24, dtype=torch.bfloat16)
    rstd_S, logits_QS = kernel.forward(case.folded_QD, case.sources, None, 1e-6).saved
    assert (rstd_S.shape, rstd_S.dtype) == ((4, 5, 3), torch.float32)
    assert (logits_QS.shape, logits_QS.dtype) == ((2, 4, 5, 3), torch.float32)
    assert rstd_S.is_contiguous()
    assert logits_QS.is_contiguous()


def test_what_the_kernel_does_not_take_is_refused_by_name(monkeypatch):
    folded_QD = torch.zeros(1, 4, device=DEVICE)
    with pytest.raises(ValueError, match=r"float32, bfloat16 and float16, .* torch.float64"):
        kernel.forward(folded_QD.double(), [folded_QD.double()], None, 1e-6)
    with pytest.raises(ValueError, match="at most 32 queries at once, got 33"):
        kernel.forward(folded_QD.expand(33, 4), [folded_QD], None, 1e-6)
    monkeypatch.setattr(kernel, "INTERPRETED", False)
    with pytest.raises(ValueError, match="needs CUDA tensors, or TRITON_INTERPRET=1"):
        kernel.forward(torch.zeros(1, 4), [torch.zeros(1, 4)], None, 1e-6)
    monkeypatch.setattr(kernel, "INTERPRETED", True)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1; the sources are on meta"):
        kernel.forward(folded_QD, [torch.zeros(1, 4, device="meta")], None, 1e-6)


@pytest.mark.parametrize("fault", ["query", "eps", "one source", "alpha"])
def test_the_budget_catches_a_small_fault(fault):
    case = case_of(2, 5, 6, 24)
    wrong = {
        "query": replace(case, folded_QD=case.folded_QD * 1.001),
        "one source": replace(case, sources=[case.sources[0] * 0.999, *case.sources[1:]]),
    }

    class Faulty:
        @staticmethod
        def forward(folded_QD, sources, given, eps):
            x = wrong.get(fault, case)
            eps = eps * 1e3 if fault == "eps" else eps
            return kernel.forward(x.folded_QD, x.sources, given, eps)

        @staticmethod
        def backward(upstream, folded_QD, sources, given, saved, into, needs_folded):
            if fault == "alpha":
                saved = (saved[0], saved[1] * 1.001)
            arguments = (upstream, folded_QD, sources, given, saved, into, needs_folded)
            return kernel.backward(*arguments)

    with pytest.raises(AssertionError, match="budget"):
        assert_kernel_within_budget(Faulty, case)


@pytest.mark.parametrize("with_given", [False, True])
def test_more_queries_than_a_program_takes_go_in_parts(with_given, monkeypatch):
    monkeypatch.setattr(kernel, "MAX_QUERIES", 2)
    case = case_of(5, 3, 7, 20, with_given=with_given)
    accumulate = [False, True, False]
    assert_kernel_within_budget(kernel.kernel(), case, accumulate=accumulate)
