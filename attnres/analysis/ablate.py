"""What a trained model loses where something is taken away: a source of a reader, or a layer.

A weight says how much of a source is mixed in, not whether it matters: a large source may be
written off by the next norm, and a small one decide. The loss without it says so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.residual import AttnRes
from attnres.residual.base import Output, Parts
from attnres.residual.standard import RunningSum


@dataclass(frozen=True, kw_only=True)
class Effects:
    """Loss with something removed less `loss`, nats a token."""

    loss: float
    sources: list[list[float | None]] | None  # by reader and source; None where it is the only one
    layers: list[float]


def ablate(model: Any, tokens_BT: Tensor) -> Effects:
    """Of an `AttnResForCausalLM` on a batch, without dropout; nothing of the model is changed.

    Sources are those of `AttnRes`, and of a running sum what it starts as and each output; for
    other methods they are None.
    """
    training = model.training
    model.eval()
    try:
        loss = _loss(model, tokens_BT)
        return Effects(
            loss=loss,
            sources=_sources(model, tokens_BT, loss),
            layers=_layers(model, tokens_BT, loss),
        )
    finally:
        model.train(training)


def _sources(model: Any, tokens_BT: Tensor, loss: float) -> list[list[float | None]] | None:
    residual = model.residual
    if not isinstance(residual, AttnRes | RunningSum):
        return None
    effects: list[list[float | None]] = []
    for reader in range(residual.n_sublayers + 1):
        n_sources = residual.n_sources(reader) if isinstance(residual, AttnRes) else reader + 1
        if n_sources == 1:
            effects.append([None])
            continue
        row: list[float | None] = []
        for source in range(n_sources):
            with without_source(residual, reader, source):
                row.append(_loss(model, tokens_BT) - loss)
        effects.append(row)
    return effects


def _layers(model: Any, tokens_BT: Tensor, loss: float) -> list[float]:
    residual = model.residual
    effects = []
    for first in range(0, residual.n_sublayers, SUBLAYERS_PER_LAYER):
        with without_sublayers(residual, range(first, first + SUBLAYERS_PER_LAYER)):
            effects.append(_loss(model, tokens_BT) - loss)
    return effects


@torch.no_grad()
def _loss(model: Any, tokens_BT: Tensor) -> float:
    return model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss.item()


@contextmanager
def without_source(residual: AttnRes | RunningSum, reader: int, source: int) -> Iterator[None]:
    """One reader does not see one source; the others see it as ever.

    The weights of `AttnRes` are a softmax over the sources that are left; a running sum has the
    output taken off.
    """
    read, write, finish, start = residual.read, residual.write, residual.finish, residual.start
    written: list[Any] = []

    def mix(state: Any) -> Tensor:
        if isinstance(residual, RunningSum):
            return state - written[source].to(state.dtype)
        left = [each for i, each in enumerate(state.sources) if i != source]
        return cast(Any, residual.readers[reader])(tuple(left))

    def recording_start(embed_BTD: Tensor) -> Any:
        state = start(embed_BTD)
        written[:] = [state]  # read of a running sum alone, which is its own first source
        return state

    def recording_write(state: Any, depth: int, out_BTD: Output) -> Any:
        written.append(out_BTD[0] + out_BTD[1] if isinstance(out_BTD, Parts) else out_BTD)
        return write(state, depth, out_BTD)

    with _shadowed(
        residual,
        start=recording_start,
        write=recording_write,
        read=lambda state, depth: (mix(state), state) if depth == reader else read(state, depth),
        finish=lambda state: mix(state) if reader == residual.n_sublayers else finish(state),
    ):
        yield


@contextmanager
def without_sublayers(residual: Any, depths: range) -> Iterator[None]:
    """The sublayers at these depths write zero.

    A zero source still takes its weight in `AttnRes`, so a mix is smaller than over the other
    sources alone by one factor, which the norm after the read takes away.
    """
    write = residual.write

    def writing(state: Any, depth: int, out_BTD: Output) -> Any:
        if depth in depths:
            parts = isinstance(out_BTD, Parts)
            zeros = map(torch.zeros_like, out_BTD if parts else (out_BTD,))
            out_BTD = Parts(*zeros) if parts else next(zeros)
        return write(state, depth, out_BTD)

    with _shadowed(residual, write=writing):
        yield


@contextmanager
def _shadowed(residual: Any, **methods: Any) -> Iterator[None]:
    for name, method in methods.items():
        setattr(residual, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(residual, name)
