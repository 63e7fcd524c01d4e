"""Questions of the conformance kit, with inputs that are the same numbers in every dtype.

Every input is a number of at most eight significant bits, so it is exact in bfloat16 already and
one float64 answer serves all dtypes. The draws come from a generator of our own: no release of
torch or numpy changes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

KindName = Literal["op", "full", "block", "model", "start"]
Check = Literal["budget", "exact", "finite"]
EPS = 1e-6
GRAIN = 32  # draws are multiples of 1 / GRAIN, from -62 to 62 of them


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question.

    Attributes:
        why: what it shows, in a sentence.
        inputs: float64 tensors by name; "sources" and "outputs" are stacks [S, B, T, D].
        upstream: gradient that comes back to what is answered, of its shape.
        check: "budget" compares within the error budget, "exact" to the last bit, "finite" the
            answer within the budget and of gradients only that they are finite.
        frozen: inputs that need no gradient.
        strided: give the sources as rows of one bank [B, T, S, D].
    """

    name: str
    why: str
    inputs: dict[str, Tensor]
    upstream: Tensor
    eps: float = EPS
    sublayers_per_block: int = 1
    check: Check = "budget"
    frozen: tuple[str, ...] = ()
    strided: bool = False
    golden: tuple[float, ...] = field(default=())  # by hand: each read is this number everywhere


class Draws:
    """Numbers of bell shape, exact in bfloat16; by the generator of Knuth's MMIX."""

    def __init__(self, seed: int):
        self.bits = self._bits(seed)

    def __call__(self, *shape: int) -> Tensor:
        """Multiples of 1/32 between -2 and 2, of deviation 0.58, float64."""
        n_numbers = torch.Size(shape).numel()
        numbers = [sum(next(self.bits) for _ in range(4)) - 62 for _ in range(n_numbers)]
        return torch.tensor(numbers, dtype=torch.float64).reshape(shape) / GRAIN

    @staticmethod
    def _bits(seed: int) -> Iterator[int]:
        """Five bits at a time."""
        state = seed
        while True:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            yield state >> 59


def op_cases() -> tuple[Case, ...]:
    """Questions to the op f(query, sources, key_weight, eps)."""
    return (
        _random("random", "the formula as a whole", 4, 2, 3, 16),
        _random("narrow", "a width of 1, where keys are signs", 3, 1, 4, 1),
        _random("odd_width", "a width that is no multiple of 8", 5, 1, 4, 23),
        _random("many_sources", "187 sources, as in Full over 93 layers", 187, 1, 2, 3),
        _random("no_tokens", "an empty batch", 2, 1, 0, 8),
        _random("strided", "sources that are rows of one bank", 4, 2, 3, 8, strided=True),
        _random("frozen", "sources that need no gradient", 3, 1, 3, 8, frozen=("sources",)),
        _random("one_source", "one source comes back to the bit", 1, 2, 3, 8, check="exact"),
        _zero_query(),
        _counted(),
        _small("large_eps", 4, 16, size=1 / 4, eps=0.25),
        _small("small_sources", 3, 12, size=1 / 64, eps=1e-3),
        _unequal(),
        _zero_source(),
        _large_query(),
        _cancelling(),
    )


def random_inputs(seed: int, n_sources: int, *shape: int) -> dict[str, Tensor]:
    """Logits of order one, sources of unequal size."""
    draw, dim = Draws(seed), shape[-1]
    size = torch.arange(n_sources, dtype=torch.float64) % 3 + 1
    return {
        "query": draw(dim) * query_scale(dim),
        "sources": draw(n_sources, *shape) * size.view(-1, *[1] * len(shape)),
        "key_weight": 1 + draw(dim) / 4,
    }


def query_scale(dim: int) -> float:
    """A power of two, so that a logit of unit keys is of order one."""
    return 2.0 ** (1 - (dim.bit_length() - 1) // 2)


def _random(name: str, why: str, n_sources: int, *shape: int, **settings) -> Case:
    seed = sum(map(ord, name))
    return _case(name, why, random_inputs(seed, n_sources, *shape), **settings)


def _case(name: str, why: str, inputs: dict[str, Tensor], **settings) -> Case:
    upstream = Draws(len(name))(*inputs["sources"].shape[1:])
    return Case(name=name, why=why, inputs=inputs, upstream=upstream, **settings)


def _zero_query() -> Case:
    inputs = random_inputs(11, 5, 2, 3, 8)
    inputs["query"] = torch.zeros_like(inputs["query"])
    return _case("zero_query", "a zero query is the mean", inputs)


def _counted() -> Case:
    """Source i is i everywhere: the mean tells how many were read."""
    inputs = random_inputs(12, 40, 1, 2, 4)
    inputs["query"] = torch.zeros_like(inputs["query"])
    inputs["sources"] = torch.arange(40.0).double().view(40, 1, 1, 1).expand(40, 1, 2, 4)
    return _case(
        "counted",
        "40 sources have the mean 19.5, and each a gradient",
        inputs,
        frozen=("query", "key_weight"),  # keys are all alike: these gradients cancel
        golden=(19.5,),
    )


def _small(name: str, n_sources: int, dim: int, size: float, eps: float) -> Case:
    inputs = random_inputs(dim, n_sources, 2, 3, dim)
    inputs["sources"] = inputs["sources"] * size
    return _case(name, "where eps stands in the norm", inputs, eps=eps)


def _unequal() -> Case:
    """The second source is 1024 times the first: equal weights, 512.5 times the first."""
    inputs = random_inputs(14, 2, 2, 3, 8)
    first = inputs["sources"][0]
    first = torch.where(first == 0, 1.0, first)
    inputs["sources"] = torch.stack([first, 1024 * first])
    frozen = ("query", "key_weight")  # keys are alike: these gradients cancel
    return _case("unequal", "keys are normed and values are not", inputs, frozen=frozen)


def _zero_source() -> Case:
    inputs = random_inputs(16, 3, 1, 3, 8)
    inputs["sources"] = inputs["sources"] * torch.tensor([1.0, 0, 1]).view(3, 1, 1, 1)
    return _case("zero_source", "a source of zeros has a logit of 0 and counts", inputs, eps=1e-2)


def _large_query() -> Case:
    inputs = random_inputs(17, 9, 1, 2, 8)
    inputs["query"] = inputs["query"].sign() * 8192
    return _case("large_query", "logits far beyond exp's range", inputs, check="finite")


def _cancelling() -> Case:
    """Two large terms of every logit cancel: what rounds keys in bfloat16 is far off."""
    inputs = random_inputs(18, 4, 2, 3, 8)
    inputs["key_weight"] = inputs["key_weight"].index_fill(0, torch.tensor([0, 1]), 1.0)
    inputs["query"] = torch.cat([torch.tensor([64.0, -192.0]), inputs["query"][2:]])
    eighths = inputs["sources"][..., :1].mul(8).round() / 8
    inputs["sources"] = torch.cat([3 * eighths, eighths, inputs["sources"][..., 2:]], dim=-1)
    return _case("cancelling", "keys stay in float32 until the logit is summed", inputs)
