"""Phase 1: the sources read once for twelve queries, against twelve reads of them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from bandwidth import Floor
from contestants import EPS, Inputs, random_inputs, sources_of
from correctness import ODD, WrongError, compare, outputs_and_gradients
from rounds import Case, Timing, measure, ratio, summary
from torch import Tensor

from attnres.ops import depth_attention, depth_attention_queries

N_QUERIES = 12


def check_queries(dtypes: Iterable[torch.dtype]) -> None:
    """Raises WrongError where the mixes or a gradient are worse than the reference's."""
    for dtype in dtypes:
        inputs = _with_queries(random_inputs(*ODD, dtype))
        exact_inputs = {name: x.double() for name, x in inputs.items()}
        findings = compare(
            outputs_and_gradients(lambda x: lambda: _at_once(x), inputs),
            outputs_and_gradients(lambda x: lambda: _at_once(x, "reference"), inputs),
            outputs_and_gradients(lambda x: lambda: _at_once(x, "reference"), exact_inputs),
        )
        if findings:
            raise WrongError(f"depth_attention_queries, {dtype}: " + "; ".join(findings))


def measure_queries(
    shape: tuple[int, int, int], dtype: torch.dtype, timing: Timing
) -> list[dict[str, Any]]:
    """A row for forward, and one for forward and backward."""
    n_rows, dim, n_sources = shape
    floor = Floor(n_rows * dim * dtype.itemsize, n_sources)
    rows = []
    for mode, make in (("forward", _forward), ("forward + backward", _both)):
        inputs = _with_queries(random_inputs(n_rows, dim, n_sources, dtype))
        cases = {"reads": make(_reads, inputs), "at once": make(_at_once, inputs)}
        samples = measure({**cases, **floor.cases}, timing)
        is_both = mode != "forward"
        floor_s = floor.seconds(samples, backward=is_both, n_queries=N_QUERIES)
        rows.append(
            {
                "shape": list(shape),
                "dtype": str(dtype).removeprefix("torch."),
                "mode": mode,
                "reads": summary(samples["reads"]),
                "at_once": summary(samples["at once"]),
                "faster": ratio(samples["reads"], samples["at once"]),
                "over_floor": ratio(samples["at once"], floor_s),
            }
        )
    return rows


def _with_queries(inputs: Inputs) -> Inputs:
    """A query and a key weight for each, none like another."""
    scale_Q = torch.linspace(-1, 1, N_QUERIES).unsqueeze(-1)
    query, key_weight = inputs["query"], inputs["key_weight"]
    return {
        **inputs,
        "query": (query.float() * scale_Q).to(query.dtype),
        "key_weight": (key_weight.float() * (2 + scale_Q)).to(query.dtype),
    }


def _at_once(inputs: Inputs, impl: str | None = None) -> Tensor:
    query, key_weight, sources = inputs["query"], inputs["key_weight"], sources_of(inputs)
    mix_QBTD, _ = depth_attention_queries(query, sources, key_weight, eps=EPS, impl=impl)
    return mix_QBTD


def _reads(inputs: Inputs) -> tuple[Tensor, ...]:
    sources = sources_of(inputs)
    readers = zip(inputs["query"], inputs["key_weight"], strict=True)
    return tuple(depth_attention(query, sources, weight, eps=EPS) for query, weight in readers)


def _forward(read: Callable[[Inputs], Any], inputs: Inputs) -> Case:
    def case() -> object:
        with torch.no_grad():
            return read(inputs)

    return case


def _both(read: Callable[[Inputs], Any], inputs: Inputs) -> Case:
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    upstream = torch.randn(N_QUERIES, *sources_of(inputs)[0].shape).to(inputs["query"].dtype)

    def case() -> object:
        mixes = read(leaves)
        given = upstream if isinstance(mixes, Tensor) else upstream.unbind(0)
        return torch.autograd.grad(mixes, list(leaves.values()), given)

    return case
