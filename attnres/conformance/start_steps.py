"""How queries and key weights start: at zero and at one (arXiv:2603.15031, section 3.1).

A zero query is the mean of its sources; whatever else initialises a model has to leave it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres.conformance.cases import Case
from attnres.conformance.mistake import Mistake

Values = Callable[[int, int], Tensor]


@dataclass(frozen=True)
class Start:
    """f(dim, n_sublayers) -> queries and key weights, a row a reader; without changes right."""

    queries: Values = torch.zeros
    key_weights: Values = torch.ones

    def __call__(self, dim: int, n_sublayers: int) -> tuple[Tensor, Tensor]:
        return self.queries(n_sublayers, dim), self.key_weights(n_sublayers, dim)


RIGHT = Start()


def start_cases() -> tuple[Case, ...]:
    """`upstream` only tells the size: a row a reader with parameters."""
    why = "queries are exactly zero and key weights one"
    return tuple(
        Case(name=name, why=why, inputs={}, upstream=torch.zeros(shape), check="exact")
        for name, shape in (("start", (6, 8)), ("start_odd", (7, 3)))
    )


def normal(n_rows: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n_rows, dim, generator=generator) * 0.02


START_MISTAKES = (
    Mistake(
        "queries_not_zero",
        "start",
        "Queries start at random numbers.",
        "Whoever trains: reads are no mean at the start. An initialiser that runs over all "
        "parameters, or a Linear that holds the query, overwrites the zeros.",
        "Set queries to zero after everything else has initialised the model.",
        {"queries": normal},
    ),
    Mistake(
        "key_weights_not_one",
        "start",
        "Gains of the key norm do not start at one.",
        "Whoever trains: at zero no query learns.",
        "Set key weights to one after everything else has initialised the model.",
        {"key_weights": torch.zeros},
    ),
)
