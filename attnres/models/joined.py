"""The sublayers of a transformers model, joined by a residual method in the model's own loop.

The residual state travels through that loop in the place of the hidden tensor: each decoder layer
reads, runs a sublayer and writes, once for each of its sublayers, and the final norm finishes
first. No forward of a model is copied and nothing is kept between calls.

Where a method gives query, key and value a mix each, an attention gets the three side by side,
three times as wide, and each of its projections takes its own.
"""

import inspect
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from attnres.models.families import family_of
from attnres.models.front import Front, in_front
from attnres.models.part import WHOLE, Leaving
from attnres.models.sublayers import Attention, Family, Sublayer
from attnres.models.taps import Tapped, TappedState
from attnres.residual import Residual


class DepthLayer(Front):
    """Put before a decoder layer's own class: it carries the residual state instead of a tensor."""

    residual_of: tuple[Residual]  # in a tuple, since the causal LM owns it, not this module
    sublayers: tuple[Sublayer, ...]
    first_depth: int
    argument_names: tuple[str, ...]  # of the layer's own forward, after the hidden state

    def __call__(self, state: Any, *arguments: Any, **context: Any) -> Any:
        part = context.get("part")
        if part is not None and not part.meets(self.first_depth, len(self.sublayers)):
            return state  # without its hooks: FSDP would gather weights that nothing reads
        return super().__call__(state, *arguments, **context)

    def forward(self, state: Any, *arguments: Any, **context: Any) -> Any:
        context.update(zip(self.argument_names, arguments, strict=False))
        if context.pop("output_hidden_states", False):
            raise ValueError("output_hidden_states: ask the causal LM, not the base model in it")
        (residual,) = self.residual_of
        taps = context.pop("taps", None)
        if taps is not None:
            residual = Tapped(residual, taps)
        part = context.pop("part", None) or WHOLE
        for depth, sublayer in enumerate(self.sublayers, self.first_depth):
            if not part.start <= depth < part.stop:
                continue
            if depth == part.start:
                state = residual.start(state) if depth == 0 else part.state
            if sublayer.norm is None:
                mix, state = residual.read(state, depth)
            else:
                mix, state = residual.read_normed(state, depth, getattr(self, sublayer.norm))
            state = residual.write(state, depth, sublayer(self, mix, context))
        return part.left_with(state, self.first_depth + len(self.sublayers))


class FinishingNorm(Front):
    """Put before the final norm's own class: the output read comes first."""

    residual_of: tuple[Residual]  # in a tuple, since the causal LM owns it, not this module

    def forward(self, state: Any) -> Tensor:
        (residual,) = self.residual_of
        if isinstance(state, Leaving):
            return state.leave()
        if isinstance(state, TappedState):
            residual = Tapped(residual, state.asked_for)
        return super().forward(residual.finish(state))


class WaysAttention(Front):
    """Put before an attention's own class: what becomes a projection takes its way of three.

    PEFT and quantisation put a module of theirs in the place of a projection.
    """

    projections: tuple[str, ...] = ()
    dim: int

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.projections and not isinstance(value, WayProjection):
            value.__class__ = in_front(WayProjection, type(value))
            value.way, value.dim = self.projections.index(name), self.dim


class WayProjection(Front):
    """Put before a projection's own class: of three ways side by side it takes its own."""

    way: int
    dim: int

    def forward(self, x: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if x.shape[-1] == 3 * self.dim:
            x = x.chunk(3, dim=-1)[self.way]
        return super().forward(x, *arguments, **keywords)


def join_by(residual: Residual, model: PreTrainedModel) -> None:
    """Let `residual` join the sublayers of a base model (without a head), in place of another."""
    family = family_of(model.config)
    if family.prepare is not None:
        family.prepare(model, model.config)
    attentions = _attentions_with_ways(residual, model, family)
    layers = cast(nn.ModuleList, getattr(model, family.layers))
    for i, layer in enumerate(layers):
        if not isinstance(layer, DepthLayer):
            _extend(layer, family, first_depth=i * len(family.sublayers))
        cast(DepthLayer, layer).residual_of = (residual,)
    for attention, projections in attentions:
        _let_ways_in(attention, projections, model.config.hidden_size)
    final_norm = getattr(model, family.final_norm)
    if not isinstance(final_norm, FinishingNorm):
        final_norm.__class__ = in_front(FinishingNorm, type(final_norm))
    final_norm.residual_of = (residual,)
    model._no_split_modules = {type(layer).__name__ for layer in layers}


def _extend(layer: Any, family: Family, first_depth: int) -> None:
    """Put `DepthLayer` before a layer's class; parameters, their names and hooks stay."""
    # GPT-2's loop passes some arguments by position
    layer.argument_names = tuple(inspect.signature(type(layer).forward).parameters)[2:]
    layer.__class__ = in_front(DepthLayer, type(layer))
    layer.sublayers, layer.first_depth = family.sublayers, first_depth


def _attentions_with_ways(
    residual: Residual, model: PreTrainedModel, family: Family
) -> list[tuple[Any, tuple[str, ...]]]:
    """Each attention that gets ways, and its projections; ValueError where it has one input."""
    found = []
    for i, layer in enumerate(cast(nn.ModuleList, getattr(model, family.layers))):
        for depth, sublayer in enumerate(family.sublayers, i * len(family.sublayers)):
            if not residual.has_ways(depth):
                continue
            if not (isinstance(sublayer, Attention) and sublayer.projections):
                raise ValueError(
                    f"{type(residual).__name__} reads for query, key and value apart, but sublayer "
                    f"{depth} of a {model.config.model_type!r} model is no attention that has a "
                    "projection of its input for each"
                )
            found.append((getattr(layer, sublayer.part), sublayer.projections))
    return found


def _let_ways_in(attention: Any, projections: tuple[str, ...], dim: int) -> None:
    """Put `WaysAttention` before an attention's class, and its projections' before theirs."""
    if isinstance(attention, WaysAttention):
        return
    attention.__class__ = in_front(WaysAttention, type(attention))
    attention.projections, attention.dim = projections, dim
    for name in projections:
        setattr(attention, name, getattr(attention, name))
