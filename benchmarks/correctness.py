"""No figure without this: what is timed is first held to float64, with a measured tolerance.

An implementation may err at most twice as much as its definition does in the dtype that is timed,
in the mix and in the gradient of every input; a peer, whose rounding is its own affair, four times.
One that computes in the sources' dtype, where that is narrower than the definition's, is held to
the definition rounded after each step.
"""

from collections.abc import Callable, Iterable

import torch
from contestants import EPS, Contestant, Inputs, random_inputs, sources_of
from torch import Tensor

ODD = (37, 123, 5)  # rows, width, sources
OWN_FACTOR, PEER_FACTOR = 2, 4


class WrongError(Exception):
    """An implementation that may not be timed."""


def check_all(contestants: Iterable[Contestant], dtypes: Iterable[torch.dtype]) -> None:
    """Raises WrongError, with every finding."""
    findings = [
        f"{contestant.name}, {dtype}: {finding}"
        for contestant in contestants
        for dtype in dtypes
        for finding in check(contestant, dtype)
    ]
    if findings:
        raise WrongError("\n".join(findings))


def check(contestant: Contestant, dtype: torch.dtype) -> list[str]:
    """What errs too much, in a line each."""
    inputs = contestant.takes(random_inputs(*ODD, dtype))
    is_rounded = contestant.rounds_each_step and dtype != torch.float32  # the definition's own
    plain_call = rounded_definition(dtype) if is_rounded else contestant.definition
    exact_inputs = {name: x.double() for name, x in inputs.items()}
    return compare(
        outputs_and_gradients(contestant.prepare, inputs),
        outputs_and_gradients(lambda x: lambda: plain_call(x), inputs),
        outputs_and_gradients(lambda x: lambda: contestant.definition(x), exact_inputs),
        PEER_FACTOR if contestant.is_peer else OWN_FACTOR,
    )


def outputs_and_gradients(
    prepare: Callable[[Inputs], Callable[[], Tensor]], inputs: Inputs
) -> dict[str, Tensor]:
    """The mix, and the gradient of each input under a fixed gradient of the mix."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    mix_D = prepare(leaves)()
    generator = torch.Generator().manual_seed(0)
    upstream_D = torch.randn(mix_D.shape, generator=generator).bfloat16().to(mix_D.dtype)
    gradients = torch.autograd.grad(mix_D, list(leaves.values()), upstream_D)
    return {"mix": mix_D.detach(), **dict(zip(leaves, gradients, strict=True))}


def compare(
    actual: dict[str, Tensor],
    plain: dict[str, Tensor],
    exact: dict[str, Tensor],
    factor: float = OWN_FACTOR,
) -> list[str]:
    """A line for every tensor that errs more than `factor` times as much as the plain one."""
    findings = []
    for name, expected in _together(exact).items():
        given, usual = _together(actual)[name], _together(plain)[name]
        rounding = torch.finfo(usual.dtype).eps * expected.abs().max()
        budget = factor * ((usual - expected).abs().max() + rounding)
        error = (given - expected).abs().max()
        if not error <= budget:  # NaN errs too
            findings.append(f"{name} errs by {error:.1e}, allowed {budget:.1e}")
    return findings


def _together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sources share one budget: which of them errs most is luck of rounding."""
    others = {name: x for name, x in tensors.items() if not name.startswith("source ")}
    sources = sources_of(tensors)
    return {**others, "sources": torch.stack(sources)} if sources else others


def rounded_definition(dtype: torch.dtype) -> Callable[[Inputs], Tensor]:
    """Depth attention in float64, rounded to `dtype` after each step, its gradients too."""

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).double()

    def definition(inputs: Inputs) -> Tensor:
        value_SD = torch.stack([source.double() for source in sources_of(inputs)])
        mean_square = value_SD.square().mean(-1, keepdim=True)
        unit_SD = rounded(value_SD * torch.rsqrt(mean_square + EPS))
        key_SD = rounded(unit_SD * inputs["key_weight"].double())
        logits_S = rounded(key_SD @ inputs["query"].double())
        alpha_S = rounded(logits_S.softmax(dim=0))
        return rounded((alpha_S.unsqueeze(-1) * value_SD).sum(dim=0)).to(dtype)

    return definition
