"""Which sublayers a decoder layer of transformers has: one adapter a family.

A sublayer is the whole residual branch: its norm, then attention or MLP. It is a function of the
decoder layer, the hidden state and the keyword arguments that the model's own loop passes down
(mask, rotary embeddings, KV cache).
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

Sublayer = Callable[[nn.Module, Tensor, Mapping[str, Any]], Tensor]


def _attention(layer: Any, h_BTD: Tensor, context: Mapping[str, Any]) -> Tensor:
    out_BTD, _ = layer.self_attn(hidden_states=layer.input_layernorm(h_BTD), **context)
    return out_BTD


def _mlp(layer: Any, h_BTD: Tensor, context: Mapping[str, Any]) -> Tensor:
    return layer.mlp(layer.post_attention_layernorm(h_BTD))


PRE_NORM: tuple[Sublayer, ...] = (_attention, _mlp)

FAMILIES: dict[str, tuple[Sublayer, ...]] = {
    "llama": PRE_NORM,
    "mistral": PRE_NORM,
    "qwen2": PRE_NORM,
    "qwen3": PRE_NORM,
}


def sublayers_of(model_type: str) -> tuple[Sublayer, ...]:
    """Sublayers of one decoder layer, in order; ValueError for a family without an adapter."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"no adapter for the model family {model_type!r}; there are: {known}")
    return FAMILIES[model_type]
