"""Phase 1 and phase 2: several queries at once, and going on from a mix."""

from collections.abc import Callable

import pytest
import torch
from error_budget import EPS, assert_as_good_as, random_read, stack_sources
from implementations import IMPLEMENTATIONS
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from attnres import depth_attention
from attnres.ops import depth_attention_queries, merge, split_queries

Tensors = dict[str, Tensor]
Op = Callable[[Tensors, str], Tensors]
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


def _inputs(n_queries: int, n_sources: int, *shape: int, dtype=torch.float32) -> Tensors:
    """Sources of unequal size, and logits of order one that differ from query to query."""
    read = random_read(n_sources, *shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    noise_QD = torch.randn(n_queries, shape[-1], generator=generator, dtype=torch.float64)
    inputs = {
        "queries": read.query_D + noise_QD / shape[-1] ** 0.5,
        "key_weights": read.key_weight_D + noise_QD / 8,
        **{f"source {i}": source for i, source in enumerate(read.sources)},
    }
    return {name: x.to(dtype) for name, x in inputs.items()}


def _merge_inputs(n_sources: int, *shape: int, dtype=torch.float32) -> Tensors:
    """As of one query, with the mix of other sources; its lse is as wide as the arithmetic."""
    inputs = _inputs(1, n_sources + 1, *shape, dtype=dtype)
    mix_D = inputs.pop(f"source {n_sources}")
    generator = torch.Generator().manual_seed(8)
    lse = torch.randn(shape[:-1], generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)
    return {**inputs, "mix": mix_D, "lse": lse.to(wide)}


def _sources(inputs: Tensors) -> list[Tensor]:
    return [x for name, x in inputs.items() if name.startswith("source ")]


def _queries(inputs: Tensors, impl: str) -> Tensors:
    mix_QD, lse_Q = depth_attention_queries(
        inputs["queries"], _sources(inputs), inputs["key_weights"], eps=EPS, impl=impl
    )
    return {"mixes": mix_QD, "lses": lse_Q}


def _split(inputs: Tensors, impl: str) -> Tensors:
    mixes, lses = split_queries(
        inputs["queries"], _sources(inputs), inputs["key_weights"], eps=EPS, impl=impl
    )
    return {f"mix {q}": x for q, x in enumerate(mixes)} | {
        f"lse {q}": x for q, x in enumerate(lses)
    }


def _merge(inputs: Tensors, impl: str) -> Tensors:
    (query_D,), (key_weight_D,) = inputs["queries"], inputs["key_weights"]
    mix_D, lse = merge(
        inputs["mix"],
        inputs["lse"],
        _sources(inputs),
        query_D,
        key_weight_D,
        eps=EPS,
        impl=impl,
    )
    return {"merged": mix_D, "merged lse": lse}


def _forward_backward(op: Op, inputs: Tensors, impl: str, through: str = "") -> Tensors:
    """Outputs, and gradients of all inputs, by name; `through` some of the outputs alone."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    outputs = op(leaves, impl)
    generator = torch.Generator().manual_seed(9)
    upstream = {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64)
        .to(inputs["queries"].dtype)
        .to(x.dtype)
        for name, x in outputs.items()
    }
    used = {name: x for name, x in outputs.items() if through in name}
    gradients = torch.autograd.grad(
        list(used.values()),
        list(leaves.values()),
        [upstream[name] for name in used],
        allow_unused=True,
    )
    pairs = zip(leaves.items(), gradients, strict=True)
    found = {
        f"{name} gradient" if "source" not in name else name: torch.zeros_like(x)
        if gradient is None
        else gradient
        for (name, x), gradient in pairs
    }
    return {name: x.detach() for name, x in outputs.items()} | found


def _assert_within_budget(op: Op, inputs: Tensors, impl: str, through: str = "") -> None:
    exact = {name: x.double() for name, x in inputs.items()}
    actual, plain, exact = (
        stack_sources(_forward_backward(op, given, name, through))
        for given, name in ((inputs, impl), (inputs, "reference"), (exact, "reference"))
    )
    for name in exact:
        assert_as_good_as(actual[name], plain[name], exact[name], name)


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_queries_are_as_exact_as_the_reference(impl, shape, dtype):
    _assert_within_budget(_queries, _inputs(*shape, dtype=dtype), impl)


@every_impl
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_merge_is_as_exact_as_the_reference(impl, shape, dtype):
    _, *rest = shape
    _assert_within_budget(_merge, _merge_inputs(*rest, dtype=dtype), impl)


@every_impl
@every_dtype
@pytest.mark.parametrize("through", ["lse", "mix", "mix 1", "lse 2"])
def test_gradients_through_some_outputs_alone(impl, dtype, through):
    """What is not used has no gradient, which is not a gradient of zeros to read."""
    _assert_within_budget(_split, _inputs(3, 4, 131, 24, dtype=dtype), impl, through)


@every_impl
@every_dtype
@pytest.mark.parametrize("through", ["merged lse", "merged"])
def test_gradients_of_a_merge_through_one_output_alone(impl, dtype, through):
    _assert_within_budget(_merge, _merge_inputs(3, 131, 24, dtype=dtype), impl, through)


@every_impl
def test_split_queries_are_those_in_one_tensor(impl):
    inputs = _inputs(4, 3, 5, 24)
    together, apart = _queries(inputs, impl), _split(inputs, impl)
    for q in range(4):
        assert torch.equal(apart[f"mix {q}"], together["mixes"][q])
        assert torch.equal(apart[f"lse {q}"], together["lses"][q])


@every_impl
@every_dtype
def test_one_query_is_depth_attention(impl, dtype):
    inputs = _inputs(1, 5, 6, 24, dtype=dtype)
    sources = _sources(inputs)
    mix_QD, lse_Q = depth_attention_queries(
        inputs["queries"], sources, inputs["key_weights"], impl=impl
    )
    expected = depth_attention(inputs["queries"][0], sources, inputs["key_weights"][0], impl=impl)
    assert torch.equal(mix_QD[0], expected)
    assert mix_QD.dtype == dtype
    assert lse_Q.dtype == torch.promote_types(dtype, torch.float32)


@every_impl
def test_lse_is_the_logarithm_of_the_sum_of_exponentials(impl):
    inputs = _inputs(2, 3, 4, 8, dtype=torch.float64)
    sources = torch.stack(_sources(inputs))
    keys = sources / (sources.square().mean(-1, keepdim=True) + EPS).sqrt()
    folded_QD = inputs["queries"] * inputs["key_weights"]
    expected_Q = torch.einsum("qd,std->qst", folded_QD, keys).exp().sum(1).log()
    torch.testing.assert_close(_queries(inputs, impl)["lses"], expected_Q)


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
        mix_QD, lse_Q = _queries(inputs, impl).values()
        return {"mix": mix_QD[0], "lse": lse_Q[0]}

    def in_parts(inputs: Tensors, impl: str) -> Tensors:
        sources, (query_D,), (key_weight_D,) = (
            _sources(inputs),
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

    inputs = _inputs(1, 5, 3, dim, dtype=torch.float64)
    actual = _forward_backward(in_parts, inputs, impl)
    for name, value in _forward_backward(one_read, inputs, "reference").items():
        torch.testing.assert_close(
            actual[name], value, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_impl
def test_gradients_are_those_of_finite_differences_twice(impl):
    queries = _inputs(2, 2, 2, 3, dtype=torch.float64)
    merged = _merge_inputs(2, 2, 3, dtype=torch.float64)
    for op, inputs in ((_queries, queries), (_merge, merged)):
        names = list(inputs)
        leaves = [x.requires_grad_() for x in inputs.values()]

        def run(*tensors, op=op, names=names):
            return tuple(op(dict(zip(names, tensors, strict=True)), impl).values())

        assert gradcheck(run, leaves)
        assert gradgradcheck(run, leaves)
        assert gradgradcheck(lambda *tensors, run=run: run(*tensors)[1], leaves)


@every_impl
def test_a_huge_lse_leaves_the_mix_and_a_tiny_one_leaves_the_sources(impl):
    inputs = _merge_inputs(1, 4, 8)
    source_D = inputs["source 0"]
    for lse, expected in ((1e4, inputs["mix"]), (-1e4, source_D)):
        lse_T = torch.full((4,), lse)
        mix_D, _ = _merge({**inputs, "lse": lse_T}, impl).values()
        torch.testing.assert_close(mix_D, expected)
        found = _forward_backward(_merge, {**inputs, "lse": lse_T}, impl)
        assert all(x.isfinite().all() for x in found.values())


@every_impl
@pytest.mark.parametrize("frozen", ["queries", "key_weights", "source 1", "mix", "lse"])
def test_freezing_an_input_changes_no_other_gradient(impl, frozen):
    for op, inputs in ((_split, _inputs(3, 3, 4, 8)), (_merge, _merge_inputs(3, 4, 8))):
        if frozen not in inputs:
            continue
        expected = _forward_backward(op, inputs, impl)
        leaves = {n: x.detach().requires_grad_(n != frozen) for n, x in inputs.items()}
        outputs = op(leaves, impl)
        generator = torch.Generator().manual_seed(9)
        upstream = [
            torch.randn(x.shape, generator=generator, dtype=torch.float64).float()
            for x in outputs.values()
        ]
        torch.autograd.backward(list(outputs.values()), upstream)
        for name, leaf in leaves.items():
            value = expected[name if "source" in name else f"{name} gradient"]
            if name == frozen:
                assert leaf.grad is None
            else:
                assert leaf.grad is not None
                assert torch.equal(leaf.grad, value), name


@every_impl
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_mix_and_sources_meet_in_the_widest_dtype(impl, wide):
    inputs = _merge_inputs(2, 4, 8, dtype=torch.bfloat16)
    exact = _merge({name: x.to(wide) for name, x in inputs.items()}, "reference")
    for name in ("mix", "source 1"):
        found = _forward_backward(_merge, {**inputs, name: inputs[name].to(wide)}, impl)
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
        (_queries, _inputs(2, 3, 4, 8, dtype=dtype)),
        (_merge, _merge_inputs(3, 4, 8, dtype=dtype)),
    ):
        expected = _forward_backward(op, inputs, impl)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = op(inputs, impl)
        for name, value in actual.items():
            assert torch.equal(value, expected[name]), name


@every_impl
def test_two_runs_are_equal_to_the_bit(impl):
    for op, inputs in ((_queries, _inputs(3, 9, 50, 64)), (_merge, _merge_inputs(3, 50, 64))):
        first, second = (_forward_backward(op, inputs, impl) for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value, second[name]), name
