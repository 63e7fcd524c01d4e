"""A model compiled sublayer by sublayer, where its loop cannot be compiled whole.

Between sublayers FSDP2 gathers and a pipeline's stage begins and ends; both stay as they are, as do
the reads of depth and their kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnres.models.families import family_of
from attnres.models.sublayers import Sublayer


def compile_sublayers(model: Any) -> None:
    """Let `torch.compile` take each sublayer of an `AttnResForCausalLM`, in place.

    Sublayers of one kind share their code, so each kind is compiled once.
    """
    base = model.base_model
    for layer in base.get_submodule(family_of(base.config).layers):
        layer.sublayers = tuple(map(_compiled, layer.sublayers))


@dataclass(frozen=True)
class Compiled:
    """A sublayer whose norm a residual reads through, as before; what follows is one graph."""

    norm: str | None
    run: Callable[..., Any]

    def __call__(self, layer: Any, mix: Any, context: Any) -> Any:
        return self.run(layer, mix, context)


def _compiled(sublayer: Sublayer) -> Compiled:
    def run(layer: Any, mix: Any, context: Any) -> Any:
        return sublayer(layer, mix, context)

    return Compiled(sublayer.norm, torch.compile(run))
