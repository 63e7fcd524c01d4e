"""Families whose weights transformers fuses, or whose layers are one sublayer, by other names."""

from typing import Any

import pytest
import tiny_families
import torch
from tiny_models import assert_same, tokens

from attnres.models import (
    AttnResCausalLMConfig,
    AttnResForCausalLM,
    export_named,
    load_named,
    residual_to_named,
)

LAYER = "language_model.model.layers"
NAMES = {  # one of each kind, as a checkpoint of K3 has them
    f"{LAYER}.0.self_attn.q_conv1d.weight",
    f"{LAYER}.0.self_attn.f_a_proj.weight",
    f"{LAYER}.0.self_attn.A_log",
    f"{LAYER}.0.mlp.gate_proj.weight",
    f"{LAYER}.1.self_attn.kv_a_proj_with_mqa.weight",
    f"{LAYER}.1.self_attn.kv_b_proj.weight",
    f"{LAYER}.2.block_sparse_moe.gate.weight",
    f"{LAYER}.2.block_sparse_moe.gate.e_score_correction_bias",
    f"{LAYER}.2.block_sparse_moe.experts.3.w1.weight",
    f"{LAYER}.2.block_sparse_moe.experts.0.w2.weight",
    f"{LAYER}.2.block_sparse_moe.shared_experts.up_proj.weight",
    f"{LAYER}.2.self_attention_res_proj.weight",
    "language_model.model.output_attn_res_norm.weight",
    "language_model.lm_head.weight",
}


def build(seed: int) -> Any:
    text = tiny_families.text_config("kimi_linear")
    residual = {"method": "attn_res", "layers_per_block": 2, "eps": text.rms_norm_eps}
    torch.manual_seed(seed)
    model = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text, residual=residual))
    for parameter in model.residual.parameters():
        parameter.data += torch.randn_like(parameter) / 4
    return model.eval()


def test_weights_go_out_as_they_lie_on_a_disk_and_come_back():
    source, model = build(seed=0), build(seed=1)
    tensors = {name: x.clone() for name, x in export_named(source, "kimi_k3").items()}
    assert tensors.keys() >= NAMES
    assert not [name for name in tensors if not name.startswith("language_model.")]
    report = load_named(model, tensors, "kimi_k3")
    assert report.missing == report.extra == ()
    assert len(report.loaded) == len(tensors) - 2
    assert_same(model.state_dict(), source.state_dict())
    assert_same(export_named(model, "kimi_k3"), tensors)
    assert torch.equal(model(tokens()).logits, source(tokens()).logits)


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("mlp.experts.gate_up_proj", "2.block_sparse_moe.experts.1.w3"),
        ("mlp.experts.down_proj", "2.block_sparse_moe.experts.3.w2"),
        ("self_attn.conv1d.weight", "2.self_attn.k_conv1d"),
    ],
)
def test_a_missing_part_of_a_fused_weight_keeps_its_values(part, rows):
    source, model = build(seed=0), build(seed=1)
    tensors, before = export_named(source, "kimi_k3"), export_named(model, "kimi_k3")
    lost = f"{LAYER}.{rows}.weight"
    kept = before[lost].clone()
    del tensors[lost]
    report = load_named(model, tensors, "kimi_k3")
    assert report.missing == (f"model.layers.{rows}.weight",)
    assert_same(export_named(model, "kimi_k3"), {**tensors, lost: kept})
    assert not torch.equal(
        model.state_dict()[f"model.layers.2.{part}"], source.state_dict()[f"model.layers.2.{part}"]
    )


def test_a_whole_fused_weight_may_be_missing():
    tensors = export_named(build(seed=0), "kimi_k3")
    lost = [name for name in tensors if ".2.block_sparse_moe.experts." in name]
    for name in lost:
        del tensors[name]
    report = load_named(build(seed=1), tensors, "kimi_k3")
    assert len(report.missing) == len(lost) == 12


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt2", "granite"])
@pytest.mark.parametrize("names", ["torchtitan", "ours"])
def test_a_model_of_any_family_goes_out_and_comes_back(family, names):
    text = tiny_families.text_config(family)
    residual = {"method": "attn_res", "layers_per_block": 1}
    config = AttnResCausalLMConfig(text_config=text, residual=residual)
    source, model = (AttnResForCausalLM(config) for _ in range(2))
    report = load_named(model, export_named(source, names), names)
    assert report.missing == report.extra == ()
    assert_same(model.state_dict(), source.state_dict())


@pytest.mark.parametrize("family", ["phi", "cohere", "gpt_neox"])
def test_a_layer_that_is_one_sublayer_has_no_words_there(family):
    config = tiny_families.config(family, residual="full")
    with pytest.raises(ValueError, match="their layers have two sublayers"):
        residual_to_named(config, "torchtitan")
    with pytest.raises(ValueError, match=r"one rms_norm_eps for all norms.*rms_norm_eps=None"):
        residual_to_named(config, "kimi_k3")
