"""The sublayers of a transformers model, joined by a residual method in the model's own loop.

The residual state travels through that loop in the place of the hidden tensor: each decoder layer
reads, runs a sublayer and writes, twice, and the final norm finishes first. No forward of a base
model is copied and nothing is kept between calls.
"""

from functools import cache
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnres.models.sublayers import Sublayer, sublayers_of
from attnres.residual import Residual


class Front(nn.Module):
    """Put before a module's own class; pickle makes the joint class again from the two."""

    residual_of: tuple[Residual]  # in a tuple, since the causal LM owns it, not this module

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_in_front, type(self).__bases__, self.__dict__


class DepthLayer(Front):
    """Put before a decoder layer's own class: it carries the residual state instead of a tensor."""

    sublayers: tuple[Sublayer, ...]
    first_depth: int

    def forward(self, state: Any, **context: Any) -> Any:
        (residual,) = self.residual_of
        if self.first_depth == 0:
            state = residual.start(state)
        for depth, sublayer in enumerate(self.sublayers, self.first_depth):
            h_BTD, state = residual.read(state, depth)
            state = residual.write(state, depth, sublayer(self, h_BTD, context))
        return state


class FinishingNorm(Front):
    """Put before the final norm's own class: the output read comes first."""

    def forward(self, state: Any) -> Tensor:
        (residual,) = self.residual_of
        return super().forward(residual.finish(state))


def join_by(residual: Residual, model: PreTrainedModel) -> None:
    """Let `residual` join the sublayers of a base model (without a head), in place."""
    sublayers = sublayers_of(model.config.model_type)
    layers = cast(nn.ModuleList, model.layers)
    for i, layer in enumerate(layers):
        first_depth = i * len(sublayers)
        _extend(layer, DepthLayer, residual, sublayers=sublayers, first_depth=first_depth)
    _extend(cast(nn.Module, model.norm), FinishingNorm, residual)
    model._no_split_modules = {type(layer).__name__ for layer in layers}


def _extend(module: nn.Module, front: type, residual: Residual, **attributes: Any) -> None:
    """Put `front` before the module's class; parameters, their names and hooks stay."""
    module.__class__ = _in_front(front, type(module))
    for name, value in {"residual_of": (residual,), **attributes}.items():
        setattr(module, name, value)


@cache
def _in_front(front: type, own: type) -> type:
    """One class for all layers: FSDP and accelerate choose layers by their class."""
    return type(f"{front.__name__}{own.__name__}", (front, own), {})


def _new_in_front(front: type, own: type) -> Any:
    """An empty module, as pickle fills it."""
    kind: Any = _in_front(front, own)
    return kind.__new__(kind)
