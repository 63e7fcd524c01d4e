"""The public ops and the residual methods with impl="triton", on the device of test_triton.py."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from error_budget import EPS
from implementations import needs_compiler
from op_budget import (
    Op,
    Tensors,
    assert_op_within_budget,
    forward_backward,
    of_merge,
    of_queries,
    of_split_queries,
    of_weights,
    random_inputs,
    random_merge_inputs,
    sources_of,
)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from attnres import AttnRes, BlockLayout, depth_attention
from attnres.ops import centered_attention, depth_attention_queries, own
from attnres.residual import TwoPhase

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

DEVICE = os.environ.get("ATTNRES_TEST_DEVICE", "cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1, 3, 1), (3, 2, 5, 3), (2, 5, 2, 2, 45), (3, 1, 5, 45), (3, 5, 5, 1)]
N_TOKENS = 4
SMALL = (3, 2, N_TOKENS, 45)  # as there: queries, sources, then the shape of a source

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def of_mix(inputs: Tensors, impl: str, sources: Any = None, source_dim: int = 0) -> Tensors:
    """Of one query, and of the sources in any form."""
    sources = sources_of(inputs) if sources is None else sources
    reader = inputs["queries"][0], sources, inputs["key_weights"][0]
    return {"mix": depth_attention(*reader, eps=EPS, source_dim=source_dim, impl=impl)}


def of_centered(inputs: Tensors, impl: str) -> Tensors:
    query_D, key_weight_D = inputs["queries"][0], inputs["key_weights"][0]
    given = query_D, sources_of(inputs), inputs["stream"], key_weight_D
    return {"centered": centered_attention(*given, eps=EPS, impl=impl)}


OPS: dict[str, Op] = {
    "depth_attention": of_mix,
    "depth_weights": of_weights,
    "centered_attention": of_centered,
    "depth_attention_queries": of_queries,
    "split_queries": of_split_queries,
    "merge": of_merge,
}
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


def inputs_of(op: Op, shape: tuple[int, ...] = SMALL, dtype=torch.float32) -> Tensors:
    if op is of_merge:
        return random_merge_inputs(*shape[1:], dtype=dtype, device=DEVICE)
    inputs = random_inputs(*shape, dtype=dtype, device=DEVICE)
    stream_D = torch.stack(sources_of(inputs)).sum(dim=0)
    return {**inputs, "stream": stream_D} if op is of_centered else inputs


@every_op
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_are_as_exact_as_the_reference(op, shape, dtype):
    assert_op_within_budget(op, inputs_of(op, shape, dtype), "triton")


@pytest.mark.parametrize(
    ("op", "through"),
    [(of_split_queries, "lse 1"), (of_split_queries, "mix 2"), (of_merge, "lse")],
)
def test_gradients_through_one_output_alone(op, through):
    assert_op_within_budget(op, inputs_of(op), "triton", through)


def of_bank(inputs: Tensors, impl: str) -> Tensors:
    return of_mix(inputs, impl, torch.stack(sources_of(inputs), dim=-2), source_dim=-2)


def of_stack(inputs: Tensors, impl: str) -> Tensors:
    return of_mix(inputs, impl, torch.stack(sources_of(inputs)))


def of_queries_of_a_bank(inputs: Tensors, impl: str) -> Tensors:
    bank = torch.stack(sources_of(inputs), dim=-2)
    readers = inputs["queries"], bank, inputs["key_weights"]
    mix_QD, lse_Q = depth_attention_queries(*readers, eps=EPS, source_dim=-2, impl=impl)
    return {"mixes": mix_QD, "lses": lse_Q}


def of_one_given_twice(inputs: Tensors, impl: str) -> Tensors:
    first, second = sources_of(inputs)
    return of_mix(inputs, impl, [first, second, first])


@every_dtype
@pytest.mark.parametrize("op", [of_stack, of_bank, of_queries_of_a_bank, of_one_given_twice])
def test_sources_in_one_tensor_or_given_twice(op, dtype):
    assert_op_within_budget(op, inputs_of(op, dtype=dtype), "triton")


def of_readers_in_turn(inputs: Tensors, impl: str) -> Tensors:
    sources = [torch.sin(x) for x in sources_of(inputs)]
    if impl == "triton":
        sources = [own(source) for source in sources]
    sources.append(sources[0])  # a kernel's buffers are not one another
    readers = zip(inputs["queries"], inputs["key_weights"], strict=True)
    return {
        f"mix {q}": depth_attention(query_D, sources, key_weight_D, eps=EPS, impl=impl)
        for q, (query_D, key_weight_D) in enumerate(readers)
    }


@every_dtype
def test_readers_of_owned_sources_fill_one_gradient_a_source(dtype, filled):
    op = of_readers_in_turn
    assert_op_within_budget(op, inputs_of(op, dtype=dtype), "triton")
    assert filled == [False] * 2 + [True] * 4


@pytest.mark.parametrize("op", [of_mix, of_centered, of_queries, of_merge])
def test_second_derivatives_are_as_exact_as_the_reference(op):
    def first_derivatives(inputs: Tensors, impl: str) -> Tensors:
        loss = torch.stack([x.square().sum() for x in op(inputs, impl).values()]).sum()
        found = torch.autograd.grad(loss, list(inputs.values()), create_graph=True)
        return {f"first {name}": x for name, x in zip(inputs, found, strict=True)}

    assert_op_within_budget(first_derivatives, inputs_of(op), "triton")


@every_op
@pytest.mark.parametrize(
    "frozen",
    [["queries"], ["queries", "key_weights"], ["source 1"], ["queries", "source 0", "mix"]],
    ids=str,
)
def test_freezing_inputs_changes_no_other_gradient(op, frozen):
    inputs = inputs_of(op)
    whole = forward_backward(op, inputs, "triton")
    part = forward_backward(op, inputs, "triton", frozen=frozen)
    missing = {name.removesuffix(" gradient") for name in whole.keys() - part.keys()}
    assert missing == {*frozen} & inputs.keys()
    for name, value in part.items():
        assert torch.equal(value, whole[name]), name


@every_op
def test_nan_stays_in_its_token(op):
    inputs = inputs_of(op)
    inputs["source 1"][2, 5] = torch.nan
    found = forward_backward(op, inputs, "triton")
    assert any(x.isnan().any() for x in found.values())
    others = torch.tensor([0, 1, 3], device=DEVICE)
    for name, x in found.items():
        if N_TOKENS in x.shape:  # the gradient of a reader is of all tokens
            assert x.index_select(x.shape.index(N_TOKENS), others).isfinite().all(), name


@every_op
@every_dtype
def test_two_runs_are_equal_to_the_bit(op, dtype):
    inputs = inputs_of(op, dtype=dtype)
    first, second = (forward_backward(op, inputs, "triton") for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@every_op
@every_dtype
def test_tensors_without_numbers_give_shapes(op, dtype):
    inputs = inputs_of(op, dtype=dtype)
    expected = forward_backward(op, inputs, "triton")
    meta = forward_backward(op, {name: x.to("meta") for name, x in inputs.items()}, "triton")
    with FakeTensorMode() as mode:
        fakes: Tensors = {name: mode.from_tensor(x) for name, x in inputs.items()}
        fake = forward_backward(op, fakes, "triton")
    sizes = [{n: (x.shape, x.dtype) for n, x in found.items()} for found in (expected, meta, fake)]
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
@pytest.mark.parametrize("op", [of_bank, of_split_queries, of_merge])
def test_compiled_equals_eager(op, backend):
    torch._dynamo.reset()
    inputs = inputs_of(op)
    compiled = torch.compile(op, fullgraph=True, backend=backend)
    actual = forward_backward(compiled, inputs, "triton")
    for name, value in forward_backward(op, inputs, "triton").items():
        torch.testing.assert_close(actual[name], value, atol=1e-5, rtol=1e-5, msg=name)


class Loop(nn.Module):
    """A residual over sublayers without parameters."""

    def __init__(self, residual: AttnRes | TwoPhase):
        super().__init__()
        self.residual = residual

    def forward(self, embed_BTD: Tensor) -> Tensor:
        residual: Any = self.residual
        state = residual.start(embed_BTD)
        for depth in range(residual.n_sublayers):
            h_BTD, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(h_BTD))
        return residual.finish(state)


def loop_of(method: Callable[..., AttnRes | TwoPhase], layout: BlockLayout) -> Op:
    def run(inputs: Tensors, impl: str) -> Tensors:
        (embed_BTD,) = sources_of(inputs)
        loop = Loop(method(embed_BTD.shape[-1], layout, eps=EPS, impl=impl))
        readers = zip(inputs["queries"], inputs["key_weights"], strict=True)
        parameters = {}
        for i, (query_D, key_weight_D) in enumerate(readers, start=1):  # the first has none
            parameters[f"residual.readers.{i}.query"] = query_D
            parameters[f"residual.readers.{i}.key_weight"] = key_weight_D
        return {"out": functional_call(loop, parameters, embed_BTD)}

    return run


@pytest.mark.parametrize("method", [AttnRes, TwoPhase])
@pytest.mark.parametrize(
    "layout", [BlockLayout((2, 2, 1)), BlockLayout.full(5)], ids=["block", "full"]
)
@every_dtype
def test_a_residual_method_is_as_exact_as_the_reference(method, layout, dtype, filled):
    op = loop_of(method, layout)
    inputs = random_inputs(5, 1, 1, 3, 45, dtype=dtype, device=DEVICE)
    assert_op_within_budget(op, inputs, "triton")
    assert filled
    expected = forward_backward(op, inputs, "triton")["out"]
    with torch.no_grad():
        assert torch.equal(op(inputs, "triton")["out"], expected)
