"""Inkling-2 reads over depth in another way: its tensors and configs are refused, with a reason."""

from typing import Any

import pytest
import torch
from tiny_models import assert_same, build
from transformers import Inkling2ForCausalLM, Inkling2TextConfig

from attnres.models import load_named, residual_from_named

CONFIG = Inkling2TextConfig(
    vocab_size=97,
    unpadded_vocab_size=97,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=8,
    layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_layers_per_attn_res_block=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
REASON = "mixes normalised sources, divides logits by sqrt.D., has no key weights, .* three queries"


def inkling() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return Inkling2ForCausalLM(CONFIG).state_dict()


def test_the_variant_is_what_the_reason_says():
    queries = {name: x.shape for name, x in inkling().items() if name.endswith(".query")}
    assert queries["model.layers.1.attention_input.query"] == (3, 32)
    assert queries["model.final_input.query"] == (32,)
    assert "model.layers.0.attention_input.query" not in queries


@pytest.mark.parametrize("names", ["ours", "kimi_k3", "fla", "torchtitan", "inkling2"])
def test_its_tensors_are_refused_with_the_reason(names):
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=REASON) as error:
        load_named(model, inkling(), names)
    assert "\n" not in str(error.value)
    assert_same(model.state_dict(), before)


@pytest.mark.parametrize(
    "name", ["attn_res.attn_queries.0", "attn_res.mlp_queries.7", "model.attn_res.output_query"]
)
def test_so_are_the_names_of_its_own_checkpoint(name):
    with pytest.raises(ValueError, match=f"{REASON}.*found {name}"):
        load_named(build(), {name: torch.zeros(32)}, "fla")


@pytest.mark.parametrize("names", ["kimi_k3", "fla", "torchtitan", "inkling2"])
def test_so_is_its_config(names):
    config: dict[str, Any] = CONFIG.to_dict()
    with pytest.raises(ValueError, match=REASON):
        residual_from_named(config, names)
    with pytest.raises(ValueError, match=REASON):
        residual_from_named({"model_type": "inkling2", "text_config": config}, names)
