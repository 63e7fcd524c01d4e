"""A kernel of depth attention against the reference, within the error budget.

Everything that a kernel reads and writes is compared: mix, lse, and the gradients of the folded
queries, of every source and of what is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from error_budget import EPS, assert_as_good_as
from torch import Tensor

from attnres.ops import reference
from attnres.ops.kernel import Given, Kernel, SourceGradients, Upstream


@dataclass(frozen=True, kw_only=True)
class Case:
    """The inputs of one read, the gradients that come back, and what stands in the buffers."""

    folded_QD: Tensor
    sources: Sequence[Tensor]
    given: Given | None
    upstream: Upstream
    before: Sequence[Tensor]  # of each source's buffer, where it is added to

    def to(self, dtype: torch.dtype, device: str | torch.device = "cpu") -> "Case":
        """Tensors in the dtype of the sources, statistics in that of the arithmetic."""
        wide = torch.promote_types(dtype, torch.float32)
        given, (mixes, lse_Q) = self.given, self.upstream
        return Case(
            folded_QD=self.folded_QD.to(device, wide),
            sources=[x.to(device, dtype) for x in self.sources],
            given=given and Given(given.mix_QD.to(device, dtype), given.lse_Q.to(device, wide)),
            upstream=Upstream(
                [None if e is None else e.to(device, dtype) for e in mixes],
                None if lse_Q is None else lse_Q.to(device, wide),
            ),
            before=[x.to(device, dtype) for x in self.before],
        )


def random_case(
    n_queries: int,
    n_sources: int,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    with_given: bool = False,
    device: str = "cpu",
) -> Case:
    """Sources of unequal size and logits of order one, the same for the same arguments."""
    generator = torch.Generator().manual_seed(100 * n_queries + n_sources)
    *lead, dim = shape

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    case = Case(
        folded_QD=normal(n_queries, dim) * 2 / dim**0.5,
        sources=[normal(*shape) * (1 + i % 3) for i in range(n_sources)],
        given=Given(normal(n_queries, *shape), normal(n_queries, *lead)) if with_given else None,
        upstream=Upstream([normal(*shape) for _ in range(n_queries)], normal(n_queries, *lead)),
        before=[normal(*shape) for _ in range(n_sources)],
    )
    return case.to(dtype, device)


def run(
    kernel: Kernel,
    case: Case,
    eps: float = EPS,
    accumulate: Sequence[bool] | None = None,
    needed: Sequence[bool] | None = None,
    needs_folded: bool = True,
) -> dict[str, Tensor]:
    """Forward and backward, by name; a gradient that was not asked for is left out."""
    n_sources = len(case.sources)
    accumulate = [False] * n_sources if accumulate is None else accumulate
    needed = [True] * n_sources if needed is None else needed
    buffers = [
        None if not need else x.clone() if add else torch.full_like(x, torch.nan)
        for x, add, need in zip(case.before, accumulate, needed, strict=True)
    ]
    result = kernel.forward(case.folded_QD, case.sources, case.given, eps)
    other = kernel.backward(
        case.upstream,
        case.folded_QD,
        case.sources,
        case.given,
        result.saved,
        SourceGradients(buffers, accumulate),
        needs_folded,
    )
    assert needs_folded or other.folded_QD is None
    tensors = {
        "mix": result.mix_QD,
        "lse": result.lse_Q,
        "folded gradient": other.folded_QD,
        "given mix gradient": other.mix_QD,
        "given lse gradient": other.lse_Q,
        **{f"gradient of source {i}": x for i, x in enumerate(buffers)},
    }
    return {name: x for name, x in tensors.items() if x is not None}


def run_reference(
    case: Case, eps: float = EPS, accumulate: Sequence[bool] | None = None
) -> dict[str, Tensor]:
    """The same by autograd; what stands in a buffer is added to the gradient."""
    folded_QD = case.folded_QD.detach().requires_grad_()
    sources = [source.detach().requires_grad_() for source in case.sources]
    given = [x.detach().requires_grad_() for x in case.given or ()]
    mix_QD, lse_Q = _reference(folded_QD, sources, given, eps)
    gradients = [torch.zeros_like(mix_QD[0]) if e is None else e for e in case.upstream.mixes]
    grad_lse_Q = torch.zeros_like(lse_Q) if case.upstream.lse_Q is None else case.upstream.lse_Q
    inputs = [folded_QD, *given, *sources]
    found = torch.autograd.grad([mix_QD, lse_Q], inputs, [torch.stack(gradients), grad_lse_Q])
    names = ["folded", *(["given mix", "given lse"] if given else [])]
    of_sources = found[len(names) :]
    if accumulate is not None:
        of_sources = [
            x + before if add else x
            for x, before, add in zip(of_sources, case.before, accumulate, strict=True)
        ]
    return {
        "mix": mix_QD.detach(),
        "lse": lse_Q.detach(),
        **{f"{name} gradient": x for name, x in zip(names, found, strict=False)},
        **{f"gradient of source {i}": x for i, x in enumerate(of_sources)},
    }


def _reference(
    folded_QD: Tensor, sources: Sequence[Tensor], given: Sequence[Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    ones_QD = torch.ones_like(folded_QD)
    if not given:
        return reference.depth_attention_queries(folded_QD, sources, ones_QD, eps)
    merged = [
        reference.merge(mix_D, lse, sources, folded_D, ones_D, eps)
        for mix_D, lse, folded_D, ones_D in zip(*given, folded_QD, ones_QD, strict=True)
    ]
    mixes, lse = zip(*merged, strict=True)
    return torch.stack(mixes), torch.stack(lse)


def assert_kernel_within_budget(
    kernel: Kernel,
    case: Case,
    eps: float = EPS,
    accumulate: Sequence[bool] | None = None,
    needed: Sequence[bool] | None = None,
    needs_folded: bool = True,
) -> dict[str, Tensor]:
    """Every output and gradient of the kernel is as good as the reference's; returns them."""
    actual = run(kernel, case, eps, accumulate, needed, needs_folded)
    plain = run_reference(case, eps, accumulate)
    exact = run_reference(case.to(torch.float64, case.folded_QD.device), eps, accumulate)
    _assert_nothing_is_missing(case, actual, needed, needs_folded)
    actual_S, plain_S, exact_S = (
        _stack_sources({name: tensors[name] for name in actual})
        for tensors in (actual, plain, exact)
    )
    for name in exact_S:
        assert_as_good_as(actual_S[name], plain_S[name], exact_S[name], name)
    return actual


def _assert_nothing_is_missing(
    case: Case, actual: dict[str, Tensor], needed: Sequence[bool] | None, needs_folded: bool
) -> None:
    expected = {"mix", "lse"} | ({"folded gradient"} if needs_folded else set())
    expected |= {"given mix gradient", "given lse gradient"} if case.given else set()
    needed = [True] * len(case.sources) if needed is None else needed
    expected |= {f"gradient of source {i}" for i, need in enumerate(needed) if need}
    assert set(actual) == expected


def _stack_sources(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All sources share one budget: among 187 luck of rounding decides which one errs most."""
    names = [name for name in tensors if name.startswith("gradient of source ")]
    others = {name: tensor for name, tensor in tensors.items() if name not in names}
    return {**others, **({"sources": torch.stack([tensors[x] for x in names])} if names else {})}
