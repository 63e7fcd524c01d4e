"""A tiny model of every family that has an adapter: three layers, 32 wide."""

from typing import Any

import torch
from tiny_models import RESIDUALS, randomise_readers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.kimi_linear import choose_by_device

choose_by_device()  # for plain models too, whichever is made first

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 48}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA: dict[str, Any] = {
    **GROUPED,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "layer_types": LAYER_TYPES,
    "final_logit_softcapping": 5.0,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 8},
    "qwen3_moe": {
        **GROUPED,
        **EXPERTS,
        "head_dim": 8,
        "num_experts": 4,
        "mlp_only_layers": [0],
        "output_router_logits": True,
    },
    "mixtral": {
        **GROUPED,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "output_router_logits": True,
    },
    "deepseek_v3": {**LATENT, **EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "kimi_linear": {
        **LATENT,
        **EXPERTS,
        "num_local_experts": 4,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "gemma2": {**GEMMA, "attn_logit_softcapping": 10.0},
    "gemma3_text": GEMMA,
    "gpt2": {"n_inner": 48},
    "gpt_neox": {"intermediate_size": 48},
    "gpt_neox in turn": {"intermediate_size": 48, "use_parallel_residual": False},
    "phi": {"intermediate_size": 48},
    "phi3": GROUPED,
    "olmo": {**GROUPED, "clip_qkv": 2.0},
    "olmo2": GROUPED,
    "granite": {
        **GROUPED,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.0,
    },
    "cohere": {**GROUPED, "logit_scale": 0.25, "use_qk_norm": True},
    "starcoder2": {**GROUPED, "sliding_window": 4},
}
FAMILIES = list(SETTINGS)
DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "residual_dropout",
)


def text_config(family: str, **changes: Any) -> PreTrainedConfig:
    settings = {**SIZES, **SETTINGS[family], **changes}
    return AutoConfig.for_model(family.split()[0], **settings)


def plain(family: str, **changes: Any) -> Any:
    """The transformers model itself."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(text_config(family, **changes))


def config(family: str, residual: str = "block", **changes: Any) -> AttnResCausalLMConfig:
    text = text_config(family, **changes)
    return AttnResCausalLMConfig(text_config=text, residual=dict(RESIDUALS[residual]))


def build(family: str, residual: str = "block", *, trained: bool = True, **changes: Any) -> Any:
    """A joined model with random weights; `trained` moves its readers from their start."""
    torch.manual_seed(0)
    model = AttnResForCausalLM(config(family, residual, **changes))
    return randomise_readers(model) if trained else model


def dropouts(family: str) -> dict[str, Any]:
    """The settings of a family that drop anything, set to do so."""
    made = text_config(family)
    return {name: 0.2 for name in DROPOUTS if hasattr(made, name)}
