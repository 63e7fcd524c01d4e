"""The sublayers of a decoder layer of transformers, and what a family of models is made of.

A sublayer is the whole residual branch, exactly as the stream receives it: the norm that reads the
stream, attention or MLP, and the norm, dropout or multiplier that the layer puts after them. The
residual reads through the norm; the rest is a function of the decoder layer, the normed mix and the
keyword arguments that the model's own loop passes down (mask, rotary embeddings, KV cache).

Where query, key and value each have a mix, all three go through the norm and then side by side
through the attention, whose projections take their own (`attnres.models.joined`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnres.residual.base import Mix, Output, Parts, Ways

Context = Mapping[str, Any]


@dataclass(frozen=True)
class Branch:
    """norm → part → after, each by its name in the layer."""

    part: str
    norm: str | None = None  # None where the part reads the stream itself
    after: str | None = None  # a module (norm or dropout) or a multiplier

    @property
    def norms(self) -> tuple[str, ...]:
        return () if self.norm is None else (self.norm,)

    def __call__(self, layer: Any, mix: Mix, context: Context) -> Tensor:
        """The output for a mix that has been through the norm."""
        h_BTD = torch.cat(mix, dim=-1) if isinstance(mix, Ways) else mix
        out_BTD = self.run(layer, h_BTD, context)
        if self.after is None:
            return out_BTD
        after = getattr(layer, self.after)
        return after(out_BTD) if isinstance(after, nn.Module) else out_BTD * after

    def through_norm(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        """The output for a mix that has not."""
        if self.norm is not None:
            h_BTD = getattr(layer, self.norm)(h_BTD)
        return self(layer, h_BTD, context)

    def run(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        return getattr(layer, self.part)(h_BTD)


@dataclass(frozen=True)
class Attention(Branch):
    """A branch whose part takes the context, and may give its weights besides."""

    projections: tuple[str, ...] = ()  # of query, key and value, where each reads the input itself

    def run(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        out = getattr(layer, self.part)(h_BTD, **context)
        return out[0] if isinstance(out, tuple) else out


@dataclass(frozen=True)
class Parallel:
    """Attention and MLP of one input: one sublayer, so one read and one output."""

    attention: Attention
    mlp: Branch
    norm: str | None = None  # of both; None where each has its own
    summed: bool = True  # before they are added to the stream, not one after the other

    @property
    def norms(self) -> tuple[str, ...]:
        return (*self.attention.norms, *self.mlp.norms) if self.norm is None else (self.norm,)

    def __call__(self, layer: Any, h_BTD: Tensor, context: Context) -> Output:
        out_BTD = self.attention.through_norm(layer, h_BTD, context)
        mlp_BTD = self.mlp.through_norm(layer, h_BTD, context)
        return out_BTD + mlp_BTD if self.summed else Parts(out_BTD, mlp_BTD)


Sublayer = Branch | Parallel


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a residual has to know of a family of models."""

    sublayers: tuple[Sublayer, ...]  # of one decoder layer, in order
    layers: str = "layers"  # the list of decoder layers in the base model
    final_norm: str = "norm"  # in the base model
    eps: str | None = "variance_epsilon"  # of the norms that read the stream; None if it is fixed
    former_names: tuple[tuple[str, str], ...] = ()  # of weights, as a pattern, and the present ones
    check_config: Callable[[Any], None] | None = None  # ValueError for one that it cannot be
    prepare: Callable[[nn.Module, Any], None] | None = None  # of a base model, by its config

    @property
    def scale_free(self) -> bool:
        """Whether only norms read the stream, so that no more than epsilon shows its scale."""
        return all(sublayer.norms for sublayer in self.sublayers)

    def norms(self, model: nn.Module) -> list[tuple[nn.Module, ...]]:
        """The norms that read each mix of a base model, by depth; the last is the final norm."""
        layers: Any = getattr(model, self.layers)
        each = [
            tuple(getattr(layer, name) for name in sublayer.norms)
            for layer in layers
            for sublayer in self.sublayers
        ]
        return [*each, (getattr(model, self.final_norm),)]
