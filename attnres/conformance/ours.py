"""The library's own methods as they are handed in: examples, and what the kit is tried on."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnres.layout import BlockLayout
from attnres.residual import AttnRes, DepthReader, TwoPhase

Method = AttnRes | TwoPhase


def full(
    embed: Tensor, outputs: Sequence[Tensor], queries: Tensor, key_weights: Tensor, eps: float
) -> list[Tensor]:
    """Kind "full": `AttnRes` in blocks of one sublayer."""
    return block(embed, outputs, queries, key_weights, 1, eps)


def block(
    embed: Tensor,
    outputs: Sequence[Tensor],
    queries: Tensor,
    key_weights: Tensor,
    sublayers_per_block: int,
    eps: float,
) -> list[Tensor]:
    """Kind "block": `AttnRes`."""
    layout = BlockLayout.of(len(outputs), sublayers_per_block=sublayers_per_block)
    residual = AttnRes(embed.shape[-1], layout, eps)
    return _reads_of(residual, embed, outputs, queries, key_weights)


def two_phase(
    embed: Tensor,
    outputs: Sequence[Tensor],
    queries: Tensor,
    key_weights: Tensor,
    sublayers_per_block: int,
    eps: float,
) -> list[Tensor]:
    """Kind "block": `TwoPhase`."""
    layout = BlockLayout.of(len(outputs), sublayers_per_block=sublayers_per_block)
    residual = TwoPhase(embed.shape[-1], layout, eps=eps)
    return _reads_of(residual, embed, outputs, queries, key_weights)


def model(
    embed: Tensor,
    sublayers: Sequence[Callable[[Tensor], Tensor]],
    queries: Tensor,
    key_weights: Tensor,
    sublayers_per_block: int,
    eps: float,
) -> Tensor:
    """Kind "model": the loop of a model, which returns what goes to its final norm."""
    layout = BlockLayout.of(len(sublayers), sublayers_per_block=sublayers_per_block)
    residual = _with_parameters(AttnRes(embed.shape[-1], layout, eps), queries, key_weights)
    return _reads(residual, embed, sublayers)[-1]


def start(dim: int, n_sublayers: int) -> tuple[Tensor, Tensor]:
    """Kind "start": queries and key weights of a new `AttnRes`."""
    readers = _readers(AttnRes(dim, BlockLayout.full(n_sublayers)))
    queries, key_weights = zip(*((x.query, x.key_weight) for x in readers), strict=True)
    return torch.stack(queries), torch.stack(key_weights)


def _reads_of(
    residual: Method,
    embed: Tensor,
    outputs: Sequence[Tensor],
    queries: Tensor,
    key_weights: Tensor,
) -> list[Tensor]:
    given = _with_parameters(residual, queries, key_weights)
    return _reads(given, embed, [lambda h, out=out: out for out in outputs])


def _reads(
    residual: Method, embed: Tensor, sublayers: Sequence[Callable[[Tensor], Tensor]]
) -> list[Tensor]:
    state, reads = residual.start(embed), []
    for depth, sublayer in enumerate(sublayers):
        h, state = residual.read(state, depth)  # type: ignore[arg-type]  the state is its own
        reads.append(h)
        state = residual.write(state, depth, sublayer(h))  # type: ignore[arg-type]  likewise
    return [*reads, residual.finish(state)]  # type: ignore[arg-type]  likewise


def _with_parameters(residual: Method, queries: Tensor, key_weights: Tensor) -> Method:
    """The method with these tensors in the place of its parameters, so that they get gradients."""
    for depth, reader in enumerate(_readers(residual), 1):
        del reader.query, reader.key_weight
        reader.query, reader.key_weight = queries[depth], key_weights[depth]  # type: ignore[assignment]  no leaves
    return residual


def _readers(residual: Method) -> list[DepthReader]:
    """Those with parameters: the first read is the embedding."""
    return [reader for reader in residual.readers if isinstance(reader, DepthReader)]
