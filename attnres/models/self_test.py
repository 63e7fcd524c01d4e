"""What a conversion changed: logits, greedy tokens, and how much a norm's epsilon could matter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnres.models.norms import consumer_norms, eps_name

N_SEQUENCES, N_TOKENS = 2, 24  # of random tokens, where none are given
N_SHOWN = 8  # reads in the table


@dataclass(frozen=True, kw_only=True)
class ReadHazard:
    """How much the epsilon of the norm after a read would matter if the read gave a mean."""

    depth: int
    n_sources: int
    norm_eps: float  # of the original model
    smallest_rms: float  # of the ordinary stream, over tokens
    hazard: float  # (n^2 - 1) eps / (2 smallest mean square): relative error, to first order


@dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """A converted model against its original, on the same tokens."""

    residual: dict[str, Any]
    is_equal: bool  # every logit, bit for bit
    largest_difference: float  # of logits
    relative_error: float  # of logits, Euclidean norms
    greedy_agreement: float  # share of positions with the same most likely token
    n_positions: int
    hazards: tuple[ReadHazard, ...]  # empty where a sublayer reads without a norm

    def __str__(self) -> str:
        method = ", ".join(f"{key} {value}" for key, value in self.residual.items())
        lines = [
            f"residual: {method}",
            f"largest difference of logits: {self.largest_difference}",
            f"relative error of logits: {self.relative_error:.2g}",
            f"same greedy token: {self.greedy_agreement:.2%} of {self.n_positions} positions",
        ]
        return "\n".join([*lines, *self._table()])

    def _table(self) -> list[str]:
        if not self.hazards:
            return []
        worst = sorted(self.hazards, key=lambda read: -read.hazard)[:N_SHOWN]
        rows = [
            f"{read.depth:5} {read.n_sources:7} {read.smallest_rms:12.3g} {read.hazard:11.2g}"
            for read in sorted(worst, key=lambda read: read.depth)
        ]
        title = (
            f"eps hazard, the {len(rows)} largest of {len(self.hazards)} reads: relative error of "
            "the norm after a mean over the sources, had it no eps / n^2"
        )
        return [title, " read sources smallest rms      hazard", *rows]


@torch.no_grad()
def self_test(
    original: nn.Module, converted: Any, tokens_BT: Tensor | None = None
) -> ConversionReport:
    """Run both models on the same tokens, random ones where none are given, in evaluation mode."""
    if tokens_BT is None:
        tokens_BT = _random_tokens(converted)
    with _evaluating(original), _evaluating(converted):
        expected_BTV, squares = _logits_and_squares(original, tokens_BT)
        actual_BTV = converted(input_ids=tokens_BT, use_cache=False).logits
    difference_BTV = actual_BTV.double() - expected_BTV.double()
    agrees_BT = actual_BTV.argmax(-1) == expected_BTV.argmax(-1)
    return ConversionReport(
        residual=dict(converted.config.residual),
        is_equal=torch.equal(actual_BTV, expected_BTV),
        largest_difference=difference_BTV.abs().max().item(),
        relative_error=(difference_BTV.norm() / expected_BTV.double().norm()).item(),
        greedy_agreement=agrees_BT.double().mean().item(),
        n_positions=agrees_BT.numel(),
        hazards=_hazards(original, converted, squares),
    )


def _random_tokens(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    text = model.config.text_config
    n_tokens = min(N_TOKENS, getattr(text, "max_position_embeddings", N_TOKENS))
    size = (N_SEQUENCES, n_tokens)
    return torch.randint(text.vocab_size, size, generator=generator).to(model.device)


def _logits_and_squares(model: Any, tokens_BT: Tensor) -> tuple[Tensor, list[float]]:
    """Logits, and the smallest mean square over tokens of what each norm after a read gets."""
    squares: list[float] = []

    def note(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        squares.append(inputs[0].double().square().mean(-1).min().item())

    handles = [norm.register_forward_pre_hook(note) for norm, _ in _norms_with_eps(model)]
    try:
        return model(input_ids=tokens_BT, use_cache=False).logits, squares
    finally:
        for handle in handles:
            handle.remove()


def _norms_with_eps(model: Any) -> list[tuple[nn.Module, float]]:
    """A norm after each read, with its epsilon; none where there is none, or it is fixed."""
    try:
        name, norms = eps_name(model.base_model), consumer_norms(model.base_model)
    except ValueError:
        return []
    return [(first, getattr(first, name)) for first, *_ in norms]


def _hazards(original: Any, converted: Any, squares: list[float]) -> tuple[ReadHazard, ...]:
    layout = getattr(converted.residual, "layout", None)
    found = []
    for depth, ((_, eps), square) in enumerate(
        zip(_norms_with_eps(original), squares, strict=True)
    ):
        n_sources = 1 if layout is None else layout.n_sources(depth)
        added = (n_sources**2 - 1) * eps
        hazard = added / (2 * square) if square else added and float("inf")
        found.append(
            ReadHazard(
                depth=depth,
                n_sources=n_sources,
                norm_eps=eps,
                smallest_rms=square**0.5,
                hazard=hazard,
            )
        )
    return tuple(found)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [part for part in model.modules() if part.training]  # not all may be
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
