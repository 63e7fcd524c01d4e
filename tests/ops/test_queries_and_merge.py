"""Phase 1 and phase 2: several queries at once, and going on from a mix."""

import pytest
import torch
from error_budget import EPS
from implementations import IMPLEMENTATIONS
from op_budget import (
    Tensors,
    assert_op_within_budget,
    forward_backward,
    of_merge,
    of_queries,
    of_split_queries,
    random_inputs,
    random_merge_inputs,
    sources_of,
)
from torch.autograd import gradcheck, gradgradcheck

from attnres import depth_attention
from attnres.ops import depth_attention_queries, merge, split_queries

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [  # queries, sources, then the shape of a source
    (1, 1, 1, 8),
    (2, 1, 5, 3),
    (3, 4, 2, 3, 8),
    (5, 9, 2, 37, 123),
    (12, 9, 33, 64),
    (2, 40, 3, 16),
    (17, 3, 20, 640),
    (3, 2, 20, 5),
    (2, 3, 0, 8),
    (2, 3, 2, 0, 5, 8),
]

every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_queries_are_as_exact_as_the_reference(impl, shape, dtype):
    assert_op_within_budget(of_queries, random_inputs(*shape, dtype=dtype), impl)


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_merge_is_as_exact_as_the_reference(impl, shape, dtype):
    _, *rest = shape
    assert_op_within_budget(of_merge, random_merge_inputs(*rest, dtype=dtype), impl)


@every_impl
@every_dtype
@pytest.mark.parametrize("through", ["lse", "mix", "mix 1", "lse 2"])
def test_gradients_through_some_outputs_alone(impl, dtype, through):
    """What is not used has no gradient, which is not a gradient of zeros to read."""
    assert_op_within_budget(
        of_split_queries, random_inputs(3, 4, 131, 24, dtype=dtype), impl, through
    )


@every_impl
@every_dtype
@pytest.mark.parametrize("through", ["merged lse", "merged"])
def test_gradients_of_a_merge_through_one_output_alone(impl, dtype, through):
    assert_op_within_budget(of_merge, random_merge_inputs(3, 131, 24, dtype=dtype), impl, through)


@every_impl
def test_split_queries_are_those_in_one_tensor(impl):
    inputs = random_inputs(4, 3, 5, 24)
    together, apart = of_queries(inputs, impl), of_split_queries(inputs, impl)
    for q in range(4):
        assert torch.equal(apart[f"mix {q}"], together["mixes"][q])
        assert torch.equal(apart[f"lse {q}"], together["lses"][q])


@every_impl
@every_dtype
def test_one_query_is_depth_attention(impl, dtype):
    inputs = random_inputs(1, 5, 6, 24, dtype=dtype)
    sources = sources_of(inputs)
    mix_QD, lse_Q = depth_attention_queries(
        inputs["queries"], sources, inputs["key_weights"], impl=impl
    )
    expected = depth_attention(inputs["queries"][0], sources, inputs["key_weights"][0], impl=impl)
    assert torch.equal(mix_QD[0], expected)
    assert mix_QD.dtype == dtype
    assert lse_Q.dtype == torch.promote_types(dtype, torch.float32)


@every_impl
def test_lse_is_the_logarithm_of_the_sum_of_exponentials(impl):
    inputs = random_inputs(2, 3, 4, 8, dtype=torch.float64)
    sources = torch.stack(sources_of(inputs))
    keys = sources / (sources.square().mean(-1, keepdim=True) + EPS).sqrt()
    folded_QD = inputs["queries"] * inputs["key_weights"]
    expected_Q = torch.einsum("qd,std->qst", folded_QD, keys).exp().sum(1).log()
    torch.testing.assert_close(of_queries(inputs, impl)["lses"], expected_Q)


SPLITS = [  # sources of phase 1, then those of each merge
    [[0, 1, 2, 3], [4]],
    [[0], [1], [2], [3], [4]],
    [[2, 0], [4, 3, 1]],
    [[4], [0, 1, 2, 3]],
    [[3, 1], [0], [2, 4]],
]


@every_impl
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("dim", [1, 7])
def test_any_split_in_any_order_is_one_read(impl, split, dim):
    def one_read(inputs: Tensors, impl: str) -> Tensors:
        mix_QD, lse_Q = of_queries(inputs, impl).values()
        return {"mix": mix_QD[0], "lse": lse_Q[0]}

    def in_parts(inputs: Tensors, impl: str) -> Tensors:
        sources, (query_D,), (key_weight_D,) = (
            sources_of(inputs),
            inputs["queries"],
            inputs["key_weights"],
        )
        first, *later = [[sources[i] for i in part] for part in split]
        (mix_D,), (lse,) = split_queries(
            inputs["queries"], first, inputs["key_weights"], eps=EPS, impl=impl
        )
        for part in later:
            given = part[0] if len(part) == 1 else part  # one source needs no list
            mix_D, lse = merge(mix_D, lse, given, query_D, key_weight_D, eps=EPS, impl=impl)
        return {"mix": mix_D, "lse": lse}

    inputs = random_inputs(1, 5, 3, dim, dtype=torch.float64)
    actual = forward_backward(in_parts, inputs, impl)
    for name, value in forward_backward(one_read, inputs, "reference").items():
        torch.testing.assert_close(
            actual[name], value, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_impl
def test_gradients_are_those_of_finite_differences_twice(impl):
    queries = random_inputs(2, 2, 2, 3, dtype=torch.float64)
    merged = random_merge_inputs(2, 2, 3, dtype=torch.float64)
    for op, inputs in ((of_queries, queries), (of_merge, merged)):
        names = list(inputs)
        leaves = [x.requires_grad_() for x in inputs.values()]

        def run(*tensors, op=op, names=names):
            return tuple(op(dict(zip(names, tensors, strict=True)), impl).values())

        assert gradcheck(run, leaves)
        assert gradgradcheck(run, leaves)
        assert gradgradcheck(lambda *tensors, run=run: run(*tensors)[1], leaves)


@every_impl
def test_a_huge_lse_leaves_the_mix_and_a_tiny_one_leaves_the_sources(impl):
    inputs = random_merge_inputs(1, 4, 8)
    source_D = inputs["source 0"]
    for lse, expected in ((1e4, inputs["mix"]), (-1e4, source_D)):
        lse_T = torch.full((4,), lse)
        mix_D, _ = of_merge({**inputs, "lse": lse_T}, impl).values()
        torch.testing.assert_close(mix_D, expected)
        found = forward_backward(of_merge, {**inputs, "lse": lse_T}, impl)
        assert all(x.isfinite().all() for x in found.values())


@every_impl
@pytest.mark.parametrize("frozen", ["queries", "key_weights", "source 1", "mix", "lse"])
def test_freezing_an_input_changes_no_other_gradient(impl, frozen):
    for op, inputs in (
        (of_split_queries, random_inputs(3, 3, 4, 8)),
        (of_merge, random_merge_inputs(3, 4, 8)),
    ):
        if frozen not in inputs:
            continue
        whole = forward_backward(op, inputs, impl)
        part = forward_backward(op, inputs, impl, frozen=[frozen])
        assert whole.keys() - part.keys() == {
            frozen if "source" in frozen else f"{frozen} gradient"
        }
        for name, value in part.items():
            assert torch.equal(value, whole[name]), name


@every_impl
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_mix_and_sources_meet_in_the_widest_dtype(impl, wide):
    inputs = random_merge_inputs(2, 4, 8, dtype=torch.bfloat16)
    exact = of_merge({name: x.to(wide) for name, x in inputs.items()}, "reference")
    for name in ("mix", "source 1"):
        found = forward_backward(of_merge, {**inputs, name: inputs[name].to(wide)}, impl)
        assert found["merged"].dtype == found["merged lse"].dtype == wide
        torch.testing.assert_close(found["merged"], exact["merged"])
        torch.testing.assert_close(found["merged lse"], exact["merged lse"])
        for other, x in inputs.items():
            key = other if "source" in other else f"{other} gradient"
            assert found[key].dtype == (wide if other == name else x.dtype), other


@every_impl
@every_dtype
def test_autocast_changes_no_bit(impl, dtype):
    for op, inputs in (
        (of_queries, random_inputs(2, 3, 4, 8, dtype=dtype)),
        (of_merge, random_merge_inputs(3, 4, 8, dtype=dtype)),
    ):
        expected = forward_backward(op, inputs, impl)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = op(inputs, impl)
        for name, value in actual.items():
            assert torch.equal(value, expected[name]), name


@every_impl
def test_two_runs_are_equal_to_the_bit(impl):
    for op, inputs in (
        (of_queries, random_inputs(3, 9, 50, 64)),
        (of_merge, random_merge_inputs(3, 50, 64)),
    ):
        first, second = (forward_backward(op, inputs, impl) for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value, second[name]), name
