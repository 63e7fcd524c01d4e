"""Questions to a whole schedule: what every sublayer reads, and the output read.

Sublayers are stubs that return given outputs whatever they read, so that each read can be told.
The golden tables have an embedding of 1 and sublayer i = 1, 2, ... returning 2^i, all queries zero:
every sum of outputs is then another number, and a wrong list of sources shows at once.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnres.conformance.cases import Case, Draws, query_scale

GOLDEN_BLOCK = (1, 1.5, 3.5, 7.5, 15.5, 21, 127 / 3, 85, 511 / 3)
GOLDEN_SHORT = (*GOLDEN_BLOCK, 255.75, 511.75)
GOLDEN_FULL = tuple((2**n - 1) / n for n in range(1, 10))


def full_cases() -> tuple[Case, ...]:
    """Questions to Full AttnRes, where every sublayer is a block of its own."""
    return (
        _golden("golden_full", 8, 1, GOLDEN_FULL),
        _random("full_random", "the formula at every depth", 6, 1),
        _random("full_large_eps", "where eps stands in the norm", 3, 1, eps=0.25),
        _random("full_some_eps", "where eps stands in the norm", 5, 1, dim=12, eps=2**-5),
        _random("full_one_sublayer", "the shortest model", 1, 1),
        _cancelling("full_cancelling", 4, 1),
        _large_queries("full_large_queries", 4, 1),
        _random("many_blocks", "no source is dropped where there are many", 33, 1, 2, eps=2**-5),
    )


def block_cases() -> tuple[Case, ...]:
    """Questions to Block AttnRes, its size counted in sublayers; the last block may be short."""
    return (
        _golden("golden_block", 8, 4, GOLDEN_BLOCK),
        _golden("golden_short_last_block", 10, 4, GOLDEN_SHORT),
        _random("block_random", "blocks that end with the model", 6, 2),
        _random("block_odd", "a block that ends between attention and MLP", 8, 3, eps=2**-5),
        _random("block_large_eps", "where eps stands in the norm", 5, 4, eps=0.25),
        _random("block_whole", "one block of all sublayers", 4, 4),
        _random("block_beyond", "a block size beyond the model", 3, 8),
        _random("block_of_one", "blocks of one sublayer are Full", 4, 1),
        _cancelling("block_cancelling", 5, 3),
        _large_queries("block_large_queries", 5, 2),
        _random("many_blocks", "no source is dropped where there are many", 33, 1, 2, eps=2**-5),
    )


def _golden(name: str, n_sublayers: int, size: int, golden: tuple[float, ...]) -> Case:
    shape = (1, 2, 4)
    powers = 2.0 ** torch.arange(1, n_sublayers + 1, dtype=torch.float64)
    inputs = {
        "embed": torch.ones(shape, dtype=torch.float64),
        "outputs": powers.view(-1, 1, 1, 1).expand(n_sublayers, *shape),
        "queries": torch.zeros(n_sublayers + 1, 4, dtype=torch.float64),
        "key_weights": torch.ones(n_sublayers + 1, 4, dtype=torch.float64),
    }
    return Case(
        name=name,
        why="each read is one number, known by hand",
        inputs=inputs,
        upstream=_upstream(n_sublayers, *shape),
        sublayers_per_block=size,
        frozen=("queries", "key_weights"),  # keys are all alike: these gradients cancel
        golden=golden,
    )


def _random(
    name: str, why: str, n_sublayers: int, size: int, dim: int = 6, eps: float = 1e-6
) -> Case:
    draw, shape = Draws(sum(map(ord, name))), (1, 3, dim)
    sizes = torch.arange(n_sublayers, dtype=torch.float64) % 3 + 1
    inputs = {
        "embed": draw(*shape),
        "outputs": draw(n_sublayers, *shape) * sizes.view(-1, 1, 1, 1),
        "queries": draw(n_sublayers + 1, dim) * query_scale(dim),
        "key_weights": 1 + draw(n_sublayers + 1, dim) / 4,
    }
    return Case(
        name=name,
        why=why,
        inputs=inputs,
        upstream=_upstream(n_sublayers, *shape),
        eps=eps,
        sublayers_per_block=size,
    )


def _cancelling(name: str, n_sublayers: int, size: int) -> Case:
    """As of the op; the sums of a block are exact in bfloat16 too, and cancel as well."""
    case = _random(name, "keys stay in float32 until the logit is summed", n_sublayers, size)
    inputs = {name: x.clone() for name, x in case.inputs.items()}
    for name in ("embed", "outputs"):
        inputs[name][..., 1] = (inputs[name][..., 1] * 4).round() / 4
        inputs[name][..., 0] = inputs[name][..., 1] * 3
    inputs["queries"][:, :2] = torch.tensor([64.0, -192.0])
    inputs["key_weights"][:, :2] = 1
    return replace(case, inputs=inputs)


def _large_queries(name: str, n_sublayers: int, size: int) -> Case:
    case = _random(name, "logits far beyond exp's range", n_sublayers, size)
    queries = {"queries": case.inputs["queries"].sign() * 8192}
    return replace(case, inputs=case.inputs | queries, check="finite")


def _upstream(n_sublayers: int, *shape: int) -> Tensor:
    return Draws(n_sublayers)(n_sublayers + 1, *shape)
