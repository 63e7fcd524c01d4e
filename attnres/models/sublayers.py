"""Which sublayers a decoder layer of transformers has: one adapter a family.

A sublayer is the whole residual branch, exactly as the stream receives it: the norm that reads the
stream, attention or MLP, and the norm, dropout or multiplier that the layer puts after them. It is
a function of the decoder layer, the hidden state and the keyword arguments that the model's own
loop passes down (mask, rotary embeddings, KV cache).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

Context = Mapping[str, Any]


class Sublayer(Protocol):
    """A residual branch."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Names in the layer of the norms that read the stream; empty where it is read raw."""
        ...

    def __call__(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor: ...


@dataclass(frozen=True)
class Branch:
    """norm → part → after, each by its name in the layer."""

    part: str
    norm: str | None = None
    after: str | None = None  # a module (norm or dropout) or a multiplier

    @property
    def norms(self) -> tuple[str, ...]:
        return () if self.norm is None else (self.norm,)

    def __call__(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        if self.norm is not None:
            h_BTD = getattr(layer, self.norm)(h_BTD)
        out_BTD = self.run(layer, h_BTD, context)
        if self.after is None:
            return out_BTD
        after = getattr(layer, self.after)
        return after(out_BTD) if isinstance(after, nn.Module) else out_BTD * after

    def run(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        return getattr(layer, self.part)(h_BTD)


class Attention(Branch):
    """A branch whose part takes the context, and may give its weights besides."""

    def run(self, layer: Any, h_BTD: Tensor, context: Context) -> Tensor:
        out = getattr(layer, self.part)(h_BTD, **context)
        return out[0] if isinstance(out, tuple) else out


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a residual has to know of a family of models."""

    sublayers: tuple[Sublayer, ...]  # of one decoder layer, in order
    layers: str = "layers"  # name of the list of decoder layers in the base model
    final_norm: str = "norm"  # name of the final norm in the base model
    eps: str | None = "variance_epsilon"  # attribute of the norms that read the stream

    @property
    def scale_free(self) -> bool:
        """Whether nothing but norms reads the stream: its scale is then seen by epsilon alone."""
        return all(sublayer.norms for sublayer in self.sublayers)


PRE_NORM = Family(
    sublayers=(
        Attention("self_attn", norm="input_layernorm"),
        Branch("mlp", norm="post_attention_layernorm"),
    )
)

FAMILIES: dict[str, Family] = {
    "llama": PRE_NORM,
    "mistral": PRE_NORM,
    "qwen2": PRE_NORM,
    "qwen3": PRE_NORM,
}


def check_family(model_type: str) -> None:
    """ValueError for a family without an adapter."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"no adapter for the model family {model_type!r}; there are: {known}")


def family_of(config: Any) -> Family:
    """The adapter of the models of a transformers config; ValueError where there is none."""
    check_family(config.model_type)
    return FAMILIES[config.model_type]
