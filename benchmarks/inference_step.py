"""What a step of inference is made of, for the benchmarks: models, residual paths, peers.

A step is one forward of a transformers Llama without gradients: of one new token a sequence, with a
KV cache behind it (decode), or of a prompt (prefill), with the logits of the last token.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from contestants import PAPER, Contestant, contestants, random_inputs
from correctness import WrongError, compare
from llama_step import (
    LAYOUTS,
    VOCAB_SIZE,
    Size,
    Variant,
    build_model,
    build_residual,
    implementation,
    through,
)
from rounds import Case
from torch import Tensor
from transformers import DynamicCache

from attnres.residual import residual_from_json

CONTEXT = 512  # tokens in the cache of a decode step
READS = ("one", "two", "auto")


@dataclass(frozen=True)
class Way:
    """A layout of `attn_res`, read in one way."""

    variant: Variant
    reads: str

    @property
    def name(self) -> str:
        return f"{self.variant.layout}, {self.reads}"


def ways() -> list[Way]:
    found = [
        Variant(f"attn_res, {layout}", layout, {"method": "attn_res", **settings})
        for layout, settings in LAYOUTS.items()
    ]
    return [Way(variant, reads) for variant in found for reads in READS]


def n_parameters(size: Size) -> int:
    with torch.device("meta"):
        return sum(x.numel() for x in build_model(None, size).parameters())


def path_case(way: Way | None, size: Size, n_tokens: int) -> Case:
    """The residual path alone, each sublayer returning what was made before; None is x + f(x)."""
    residual = way and _residual(way, size)
    embed_BTD, *outs = _random(size, n_tokens, 1 + size.n_sublayers)

    def case() -> Tensor:
        with torch.inference_mode():
            return through(residual, embed_BTD, size.n_sublayers, lambda _, depth: outs[depth])

    return case


def peer_case(peer: Contestant, layout: str, size: Size, n_tokens: int) -> Case:
    """The same reads by a peer's op, and the plain sum of the outputs."""
    settings: Any = residual_from_json({"method": "attn_res", **LAYOUTS[layout]})
    of_layout = settings.layout(size.n_sublayers)
    calls = []
    for depth in range(1, size.n_sublayers + 1):
        inputs = random_inputs(
            size.batch * n_tokens, size.dim, of_layout.n_sources(depth), size.dtype
        )
        calls.append(peer.prepare(peer.takes(inputs)))
    plain = path_case(None, size, n_tokens)

    def case() -> object:
        with torch.no_grad():
            for call in calls:
                call()
        return plain()

    return case


def peers() -> tuple[list[Contestant], list[str]]:
    found, missing = contestants(compiled=False)
    return [x for x in found if x.is_peer or x.name == PAPER], missing


def decode_case(way: Way | None, size: Size) -> Case:
    """One token a sequence; the cache is cut back to `CONTEXT` tokens after each call."""
    model = _model(way, size)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=_tokens(size, CONTEXT), cache=cache, use_cache=True, logits_to_keep=1)
    tokens_BT = _tokens(size, 1)

    def case() -> None:
        with torch.inference_mode():
            model(input_ids=tokens_BT, cache=cache, use_cache=True)
            cache.crop(-1)  # the new token

    return case


def prefill_case(way: Way | None, size: Size) -> Case:
    model = _model(way, size)
    tokens_BT = _tokens(size, size.n_tokens)

    def case() -> None:
        with torch.inference_mode():
            model(input_ids=tokens_BT, use_cache=False, logits_to_keep=1)

    return case


def check_ways(dtypes: list[torch.dtype]) -> None:
    """Raises WrongError where a way errs twice as much as the definition in the same dtype."""
    findings = [
        f"{way.name}, {dtype}: {finding}"
        for dtype in dtypes
        for way in ways()
        for finding in _check(way, dtype)
    ]
    if findings:
        raise WrongError("\n".join(findings))


def _check(way: Way, dtype: torch.dtype) -> Iterator[str]:
    actual = {"output": _output(way, dtype, dtype)}
    with implementation("reference"):
        plain = {"output": _output(Way(way.variant, "one"), dtype, dtype)}
        exact = {"output": _output(Way(way.variant, "one"), torch.float64, dtype)}
    yield from compare(actual, plain, exact)


def _output(way: Way, dtype: torch.dtype, rounded: torch.dtype) -> Tensor:
    """Of 24 sublayers of an odd width, from inputs that `rounded` can hold."""
    size = Size(45, 2, dtype, 12, 7)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(rounded).to(dtype)

    residual = _residual(way, size)
    for parameter in residual.parameters():
        parameter.data.copy_(normal(size.dim) * 1.5 / size.dim**0.25)  # logits of order one
    scales = [1 / (1 + depth % 3) for depth in range(size.n_sublayers)]
    sublayer: Callable[[Tensor, int], Tensor] = lambda h_BTD, depth: scales[depth] * h_BTD.tanh()  # noqa: E731
    with torch.no_grad():
        return through(residual, normal(2, 7, size.dim), size.n_sublayers, sublayer)


def _residual(way: Way, size: Size) -> Any:
    residual = build_residual(way.variant, size.dim, size.n_sublayers).to(size.dtype)
    residual.reads = way.reads
    return residual


def _model(way: Way | None, size: Size) -> Any:
    """All models of a size share the standard one's weights: where they lie is part of the time."""
    standard = _standard(size)
    if way is None:
        return standard
    model = build_model(way.variant, size).eval()
    model.load_state_dict(standard.state_dict(), strict=False, assign=True)
    model.residual.reads = way.reads
    return model


@lru_cache(maxsize=1)
def _standard(size: Size) -> Any:
    return build_model(None, size).eval()


def _random(size: Size, n_tokens: int, n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (size.batch, n_tokens, size.dim)
    return [torch.randn(shape, generator=generator).to(size.dtype) for _ in range(n)]


def _tokens(size: Size, n_tokens: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCAB_SIZE, (size.batch, n_tokens), generator=generator)
