"""A public op against the reference, within the error budget: its outputs and every gradient.

An op takes its inputs by name and gives its outputs by name.
"""

from collections.abc import Callable, Collection

import torch
from error_budget import EPS, assert_as_good_as, random_read, stack_sources
from torch import Tensor

from attnres import depth_weights
from attnres.ops import depth_attention_queries, merge, split_queries

Tensors = dict[str, Tensor]
Op = Callable[[Tensors, str], Tensors]


def random_inputs(
    n_queries: int,
    n_sources: int,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Tensors:
    """Sources of unequal size, and logits of order one that differ from query to query."""
    read = random_read(n_sources, *shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    noise_QD = torch.randn(n_queries, shape[-1], generator=generator, dtype=torch.float64)
    inputs = {
        "queries": read.query_D + noise_QD / shape[-1] ** 0.5,
        "key_weights": read.key_weight_D + noise_QD / 8,
        **{f"source {i}": source for i, source in enumerate(read.sources)},
    }
    return {name: x.to(device, dtype) for name, x in inputs.items()}


def random_merge_inputs(
    n_sources: int, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Tensors:
    """As of one query, with the mix of other sources; its lse is as wide as the arithmetic."""
    inputs = random_inputs(1, n_sources + 1, *shape, dtype=dtype, device=device)
    mix_D = inputs.pop(f"source {n_sources}")
    generator = torch.Generator().manual_seed(8)
    lse = torch.randn(shape[:-1], generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)
    return {**inputs, "mix": mix_D, "lse": lse.to(device, wide)}


def sources_of(inputs: Tensors) -> list[Tensor]:
    return [x for name, x in inputs.items() if name.startswith("source ")]


def of_weights(inputs: Tensors, impl: str) -> Tensors:
    """Of the first query."""
    reader = inputs["queries"][0], sources_of(inputs), inputs["key_weights"][0]
    return {"weights": depth_weights(*reader, eps=EPS, impl=impl)}


def of_queries(inputs: Tensors, impl: str) -> Tensors:
    mix_QD, lse_Q = depth_attention_queries(
        inputs["queries"], sources_of(inputs), inputs["key_weights"], eps=EPS, impl=impl
    )
    return {"mixes": mix_QD, "lses": lse_Q}


def of_split_queries(inputs: Tensors, impl: str) -> Tensors:
    mixes, lses = split_queries(
        inputs["queries"], sources_of(inputs), inputs["key_weights"], eps=EPS, impl=impl
    )
    return {f"mix {q}": x for q, x in enumerate(mixes)} | {
        f"lse {q}": x for q, x in enumerate(lses)
    }


def of_merge(inputs: Tensors, impl: str) -> Tensors:
    (query_D,), (key_weight_D,) = inputs["queries"], inputs["key_weights"]
    mix_D, lse = merge(
        inputs["mix"],
        inputs["lse"],
        sources_of(inputs),
        query_D,
        key_weight_D,
        eps=EPS,
        impl=impl,
    )
    return {"merged": mix_D, "merged lse": lse}


def forward_backward(
    op: Op, inputs: Tensors, impl: str, through: str = "", frozen: Collection[str] = ()
) -> Tensors:
    """Outputs, and gradients of all inputs, by name; `through` some of the outputs alone."""
    leaves = {name: x.detach().clone() for name, x in inputs.items()}
    for name, x in leaves.items():
        x.requires_grad_(name not in frozen)
    outputs = op(leaves, impl)
    generator = torch.Generator().manual_seed(9)
    upstream = {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64)
        .to(inputs["queries"].dtype)
        .to(x)
        for name, x in outputs.items()
    }
    used = [name for name in outputs if through in name]
    torch.autograd.backward([outputs[name] for name in used], [upstream[name] for name in used])
    found = {
        f"{name} gradient" if "source" not in name else name: torch.zeros_like(x)
        if x.grad is None
        else x.grad
        for name, x in leaves.items()
        if x.requires_grad
    }
    return {name: x.detach() for name, x in outputs.items()} | found


def assert_op_within_budget(op: Op, inputs: Tensors, impl: str, through: str = "") -> None:
    exact = {name: x.double() for name, x in inputs.items()}
    actual, plain, exact = (
        stack_sources(forward_backward(op, given, name, through))
        for given, name in ((inputs, impl), (inputs, "reference"), (exact, "reference"))
    )
    for name in exact:
        assert_as_good_as(actual[name], plain[name], exact[name], name)
