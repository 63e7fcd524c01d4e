"""What a model reads of a text: weights of every token, and the depth mixing matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnres.analysis.explorer.names import (
    Named,
    output_names,
    reader_names,
    source_names,
    sublayer_names,
)
from attnres.models.taps import weights_by_depth
from attnres.residual.base import Output, Parts
from attnres.residual.mixing import mixing_matrix, recorded_outputs

MIXING_TOKENS = 512  # at most, evenly over the text; their outputs are held in float64


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Of one model and one text of T tokens."""

    readers: list[str]  # what each comes before
    sources: list[list[Named]]  # by reader; outputs where there are no depth weights
    weights: list[Tensor] | None  # by reader, ST
    mixing: list[list[float]] | None  # by reader, a weight an output; mean over tokens
    no_mixing: str  # why there is no matrix
    is_untrained: bool


@torch.no_grad()
def read_text(model: Any, sequences: Sequence[Tensor]) -> Reading:
    """Run each sequence of tokens, T, alone through an `AttnResForCausalLM`."""
    residual = model.residual
    sublayers = sublayer_names(residual.n_sublayers, model.config)
    stride = -(-sum(map(len, sequences)) // MIXING_TOKENS)
    by_sequence: list[list[Tensor]] = []
    mixings: list[Tensor] = []
    no_mixing = ""
    for tokens_T in sequences:
        with recorded_outputs(residual) as outputs:
            by_sequence += _weights(model, tokens_T)
        try:
            some = [_every(out, stride) for out in outputs]
            mixings.append(mixing_matrix(residual, some).flatten(2))
        except NotImplementedError as error:
            no_mixing = str(error)
    return Reading(
        readers=reader_names(sublayers),
        sources=source_names(residual, sublayers) if by_sequence else output_names(sublayers),
        weights=[torch.cat(x, dim=-1) for x in zip(*by_sequence, strict=True)] or None,
        mixing=_rows(torch.cat(mixings, dim=-1).mean(dim=-1)) if mixings else None,
        no_mixing=no_mixing,
        is_untrained=residual.is_untrained(),
    )


def _weights(model: Any, tokens_T: Tensor) -> list[list[Tensor]]:
    """One list by reader, of ST; none for a method without depth weights, which is run as well."""
    try:
        return [[alpha_SBT[:, 0] for alpha_SBT in weights_by_depth(model, tokens_T[None])]]
    except NotImplementedError:
        model(input_ids=tokens_T[None], use_cache=False)
        return []


def _every(out: Output, stride: int) -> Output:
    if isinstance(out, Parts):
        return Parts(*(part_BTD[:, ::stride] for part_BTD in out))
    return out[:, ::stride]


def _rows(mean_RL: Tensor) -> list[list[float]]:
    """Without what is not written yet."""
    return [row[: reader + 1] for reader, row in enumerate(mean_RL.tolist())]
