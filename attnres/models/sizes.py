"""The sizes of any supported transformers model, for the cost model."""

from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from attnres.cost import Sizes
from attnres.models.config import AttnResCausalLMConfig
from attnres.models.families import family_of
from attnres.residual import ResidualConfig

N_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")  # as families call it
EXPERTS = ".experts."  # in the name of a parameter of routed ones


def read_sizes(path: str | Path) -> tuple[Sizes, ResidualConfig | None]:
    """Sizes of a model folder or a config.json, and its residual where it is one of ours.

    Raises:
        ValueError: no config there, or of a family without an adapter.
    """
    text, residual = read_config_of(path)
    return sizes_of(text), residual


def read_config_of(path: str | Path) -> tuple[Any, ResidualConfig | None]:
    """The transformers config itself; as `read_sizes`."""
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"no config of a transformers model in {path}")
    config: Any = AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    if isinstance(config, AttnResCausalLMConfig):
        return config.text_config, config.residual_config
    return config, None


def sizes_of(config: Any) -> Sizes:
    """Counted from the family's own model, without values."""
    n_per_layer = len(family_of(config).sublayers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return Sizes(
        dim=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_sublayers=config.num_hidden_layers * n_per_layer,
        n_params=sum(parameter.numel() for parameter in model.parameters()),
        n_active_weights=_active_weights(model, config),
        score_width=_score_width(config),
        windows=_windows(config),
        **_experts(model, config),
    )


def _experts(model: Any, config: Any) -> dict[str, int]:
    """Routed experts: their parameters, and how many a token is sent to over all layers."""
    stacks = {name: p for name, p in model.named_parameters() if EXPERTS in name}
    layers = {name.split(EXPERTS)[0] for name in stacks}
    n_chosen = getattr(config, "num_experts_per_tok", None) or 0
    n_params = sum(parameter.numel() for parameter in stacks.values())
    return {"n_expert_params": n_params, "n_routes": n_chosen * len(layers)}


def _active_weights(model: Any, config: Any) -> int:
    """Of matrices and stacks; of experts the share that a token is sent to."""
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    looked_up -= {id(model.get_output_embeddings().weight)}  # where tied, it is multiplied too
    n_experts = next((n for name in N_EXPERTS if (n := getattr(config, name, None))), 1)
    n_chosen = getattr(config, "num_experts_per_tok", None) or n_experts
    total = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and id(parameter) not in looked_up:
            share = n_chosen / n_experts if EXPERTS in name else 1
            total += share * parameter.numel()
    return round(total)


def _score_width(config: Any) -> int:
    head_dim = getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    if value_dim := getattr(config, "v_head_dim", None):  # latent attention
        head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        return config.num_attention_heads * (head_dim + value_dim)
    return 2 * config.num_attention_heads * head_dim


def _windows(config: Any) -> tuple[float, ...]:
    """Linear attention has no scores, and so no window."""
    window = getattr(config, "sliding_window", None) or inf
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        is_used = getattr(config, "use_sliding_window", True)
        return (window if is_used else inf,) * config.num_hidden_layers
    by_kind = {"full_attention": inf, "sliding_attention": window}
    return tuple(by_kind[kind] for kind in kinds if kind in by_kind)
