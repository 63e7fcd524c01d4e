"""A residual method beside its recurrence written out: the same reads over the same branches."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnres.residual import Residual

DIM, N_TOKENS = 5, 3
Branch = Callable[[Tensor], Tensor]


def randomise(residual: Residual[Any]) -> Any:
    """The method in float64 with every parameter drawn."""
    torch.manual_seed(0)
    residual.double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter, std=0.5)
    return residual


def branches(n_sublayers: int) -> list[Branch]:
    """Sublayers that are not linear."""
    generator = torch.Generator().manual_seed(1)
    shape = (n_sublayers, DIM, DIM)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64)
    return [lambda h_TD, weight_DD=weight_DD: torch.tanh(h_TD @ weight_DD) for weight_DD in weights]


def embedding() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(N_TOKENS, DIM, generator=generator, dtype=torch.float64)


def reads(residual: Residual[Any], embed_TD: Tensor) -> Iterator[Tensor]:
    """What every sublayer reads, and the output read."""
    state = residual.start(embed_TD)
    for depth, branch in enumerate(branches(residual.n_sublayers)):
        h_TD, state = residual.read(state, depth)
        yield h_TD
        state = residual.write(state, depth, branch(h_TD))
    yield residual.finish(state)


def assert_reads(residual: Residual[Any], expected: list[Tensor]) -> None:
    found = list(reads(residual, embedding()))
    assert len(found) == len(expected) == residual.n_sublayers + 1
    for depth, (actual, value) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            actual,
            value,
            atol=1e-12,
            rtol=1e-12,
            msg=lambda m, depth=depth: f"depth {depth}: {m}",
        )


def assert_starts_as_it_says(residual: Residual[Any], start: str) -> None:
    """`start` is "standard" where every read is the sum of all before it, or "other"."""
    residual.double()
    state = residual.start(embedding())
    sum_TD, is_standard = embedding(), True
    for depth, branch in enumerate(branches(residual.n_sublayers)):
        h_TD, state = residual.read(state, depth)
        is_standard &= torch.allclose(h_TD, sum_TD, atol=1e-12, rtol=1e-12)
        out_TD = branch(h_TD)
        sum_TD, state = sum_TD + out_TD, residual.write(state, depth, out_TD)
    is_standard &= torch.allclose(residual.finish(state), sum_TD, atol=1e-12, rtol=1e-12)
    assert residual.starts_as == start == ("standard" if is_standard else "other")
