"""What the ops of the two phases refuse, and that they trace and need no numbers."""

import pytest
import torch
from implementations import IMPLEMENTATIONS, needs_compiler
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from attnres.ops import depth_attention_queries, merge

D4, Q4 = torch.ones(4), torch.ones(3, 4)
V, LSE = torch.ones(2, 3, 4), torch.ones(2, 3)

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("queries_QD", "sources", "key_weights_QD", "message"),
    [
        (Q4, [], Q4, "at least one source, got none"),
        (torch.ones(0, 4), [V], torch.ones(0, 4), "at least one query, got none"),
        (D4, [V], D4, r"queries_QD must have shape \[1, 4\].*got \[4\]"),
        (torch.tensor(1.0), [V], Q4, r"queries_QD must have shape \[1, 4\].*got \[\]"),
        (torch.ones(3, 5), [V], Q4, r"queries_QD must have shape \[3, 4\].*got \[3, 5\]"),
        (Q4, [V], torch.ones(2, 4), r"key_weights_QD must have shape \[3, 4\].*got \[2, 4\]"),
        (Q4, [V], D4, r"key_weights_QD must have shape \[3, 4\].*got \[4\]"),
        (
            Q4.int(),
            [V],
            Q4,
            r"queries_QD must be floating point, 16 bits or more, got torch\.int32",
        ),
        (
            Q4,
            [V],
            Q4.long(),
            r"key_weights_QD must be floating point, 16 bits or more, got torch\.int64",
        ),
        (Q4, [V.int()], Q4, r"source 0 must be floating point, 16 bits or more, got torch\.int32"),
        (Q4, [V, V[:1]], Q4, r"source 1 has \[1, 3, 4\], source 0 has \[2, 3, 4\]"),
        (Q4.to("meta"), [V], Q4, "queries_QD is on meta, the sources on cpu"),
        ([D4, D4], [V], Q4, "queries_QD must be a tensor, got"),
        (Q4, "abc", Q4, "list or tuple of tensors, got a str"),
        (Q4, [V, 1.0], Q4, "source 1 must be a tensor, got a float"),
    ],
)
def test_queries_that_do_not_fit_are_refused(queries_QD, sources, key_weights_QD, message):
    with pytest.raises(ValueError, match=message):
        depth_attention_queries(queries_QD, sources, key_weights_QD)


@pytest.mark.parametrize(
    ("mix_D", "lse", "partial", "query_D", "key_weight_D", "message"),
    [
        (V[0], LSE, V, D4, D4, r"mix_D must have shape \[2, 3, 4\], got \[3, 4\]"),
        (V, LSE[0], V, D4, D4, r"lse must have shape \[2, 3\], got \[3\]"),
        (V, LSE.unsqueeze(-1), V, D4, D4, r"lse must have shape \[2, 3\], got \[2, 3, 1\]"),
        (
            V.int(),
            LSE,
            V,
            D4,
            D4,
            r"mix_D must be floating point, 16 bits or more, got torch\.int32",
        ),
        (V, LSE.int(), V, D4, D4, r"lse must be floating point, 16 bits or more, got torch\.int32"),
        (
            V,
            LSE,
            V.int(),
            D4,
            D4,
            r"source 0 must be floating point, 16 bits or more, got torch\.int32",
        ),
        (V, 0.5, V, D4, D4, "lse must be a tensor, got 0.5"),
        (None, LSE, V, D4, D4, "mix_D must be a tensor, got None"),
        (V, LSE, [], D4, D4, "at least one source, got none"),
        (V, LSE, [V, V[:1]], D4, D4, r"source 1 has \[1, 3, 4\]"),
        (V, LSE, V, Q4, D4, r"query_D must have shape \[4\].*got \[3, 4\]"),
        (V, LSE, V, D4, Q4, r"key_weight_D must have shape \[4\].*got \[3, 4\]"),
        (V.to("meta"), LSE, V, D4, D4, "mix_D is on meta, the sources on cpu"),
        (V, LSE.to("meta"), V, D4, D4, "lse is on meta, the sources on cpu"),
    ],
)
def test_merges_that_do_not_fit_are_refused(mix_D, lse, partial, query_D, key_weight_D, message):
    with pytest.raises(ValueError, match=message):
        merge(mix_D, lse, partial, query_D, key_weight_D)


@pytest.mark.parametrize("eps", [-1.0, float("nan"), "1e-6"])
def test_epsilon_must_be_finite_and_not_negative(eps):
    with pytest.raises(ValueError, match="eps must be finite and not negative"):
        depth_attention_queries(Q4, [V], Q4, eps=eps)
    with pytest.raises(ValueError, match="eps must be finite and not negative"):
        merge(V, LSE, V, D4, D4, eps=eps)


@pytest.mark.parametrize("source_dim", [3, -4, 2, -1])
def test_an_axis_of_sources_that_does_not_exist_or_is_the_last_is_refused(source_dim):
    with pytest.raises(ValueError, match=f"axis before the last of .*, got {source_dim}"):
        depth_attention_queries(Q4, V, Q4, source_dim=source_dim)


def test_one_vector_is_no_stack_of_sources():
    with pytest.raises(ValueError, match=r"axis before the last of \[4\], got 0"):
        depth_attention_queries(Q4, D4, Q4)


def test_an_empty_stack_is_refused():
    with pytest.raises(ValueError, match="at least one source, got none"):
        depth_attention_queries(Q4, torch.ones(0, 2, 4), Q4)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="no implementation 'fast'"):
        depth_attention_queries(Q4, [V], Q4, impl="fast")
    with pytest.raises(ValueError, match="no implementation 'fast'"):
        merge(V, LSE, V, D4, D4, impl="fast")


@every_impl
def test_nan_propagates_to_its_token_alone(impl):
    source = torch.randn(2, 3, 4)
    source[0, 1, 2] = torch.nan
    mix_QD, lse_Q = depth_attention_queries(Q4, [V, source], Q4, impl=impl)
    bad = torch.zeros(2, 3, dtype=torch.bool)
    bad[0, 1] = True
    assert torch.equal(lse_Q.isnan(), bad.expand(3, 2, 3))
    assert torch.equal(mix_QD.isnan().any(-1), bad.expand(3, 2, 3))
    mix_D, lse = merge(source, LSE, V, D4, D4, impl=impl)
    assert torch.equal(mix_D.isnan().any(-1), bad)
    assert not lse.isnan().any()


def _two_phases(queries_QD, key_weights_QD, partial_D, *sources, impl):
    mix_QD, lse_Q = depth_attention_queries(queries_QD, sources, key_weights_QD, impl=impl)
    merged = [
        merge(mix_D, lse, partial_D, query_D, key_weight_D, impl=impl)
        for mix_D, lse, query_D, key_weight_D in zip(
            mix_QD, lse_Q, queries_QD, key_weights_QD, strict=True
        )
    ]
    return *(mix_D for mix_D, _ in merged), *(lse for _, lse in merged)


def _two_phase_inputs(n_tokens: int, dtype=torch.float32, device="cpu"):
    shapes = [(2, 16), (2, 16), *[(2, n_tokens, 16)] * 4]
    return [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]


def _with_gradients(outputs, inputs):
    loss = sum(x.square().sum() for x in outputs)
    assert isinstance(loss, torch.Tensor)
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def _assert_compiled_equals_eager(impl, backend, token_counts):
    torch._dynamo.reset()
    compiled = torch.compile(
        _two_phases, fullgraph=True, dynamic=len(token_counts) > 1, backend=backend
    )
    for n_tokens in token_counts:
        inputs = _two_phase_inputs(n_tokens)
        actual = _with_gradients(compiled(*inputs, impl=impl), inputs)
        expected = _with_gradients(_two_phases(*inputs, impl=impl), inputs)
        for value, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@every_impl
def test_traced_equals_eager_for_any_number_of_tokens(impl):
    _assert_compiled_equals_eager(impl, "aot_eager", (5, 1, 0))


@needs_compiler
@pytest.mark.slow
@every_impl
def test_compiled_equals_eager_for_any_number_of_tokens(impl):
    _assert_compiled_equals_eager(impl, "inductor", (5, 1, 0))


@every_impl
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors_without_numbers_give_shapes(impl, dtype):
    inputs = _two_phase_inputs(5, dtype)
    expected = _with_gradients(_two_phases(*inputs, impl=impl), inputs)
    on_meta = [x.detach().to("meta").requires_grad_() for x in inputs]
    actual = _with_gradients(_two_phases(*on_meta, impl=impl), on_meta)
    with FakeTensorMode():
        fakes = _two_phase_inputs(5, dtype)
        faked = _with_gradients(_two_phases(*fakes, impl=impl), fakes)
    assert {x.device.type for x in actual} == {"meta"}
    assert all(isinstance(x, FakeTensor) for x in faked)
    for found in (actual, faked):
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
