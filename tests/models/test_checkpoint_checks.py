"""Which checkpoints fit a config: one that would give another model is refused, not loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, assert_same, build, config, plain, text_config, tokens
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.residual import AttnResConfig

OURS: Any = AttnResForCausalLM


def drop_from_config(folder: Path, name: str) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text())
    del data[name]
    path.write_text(json.dumps(data))


def assert_refused(match: str, path: Path | None, **arguments: Any) -> None:
    with pytest.raises(ValueError, match=match) as error:
        OURS.from_pretrained(path, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "residual",
    [{"method": "attn_res", "n_blocks": 2}, AttnResConfig(n_blocks=2), "attn_res:n_blocks=2"],
    ids=["dict", "config", "text"],
)
def test_a_plain_checkpoint_loads_where_a_residual_is_given(family, residual, tmp_path):
    source = plain(family, rms_norm_eps=1e-5, rope_theta=500.0)
    source.save_pretrained(tmp_path)
    model = OURS.from_pretrained(tmp_path, residual=residual)
    assert model.config.residual_state == config().residual_state
    saved, text = source.config.to_dict(), model.config.text_config.to_dict()
    assert {name for name in text if text[name] != saved[name]} <= {"_name_or_path"}
    state = model.state_dict()
    assert_same({name: state[name] for name in source.state_dict()}, source.state_dict())
    assert set(state) - set(source.state_dict()) == {n for n in state if n.startswith("residual.")}


@pytest.mark.parametrize("tied", [False, True])
def test_a_plain_checkpoint_of_the_standard_residual_is_the_plain_model(tied, tmp_path):
    source = plain(tie_word_embeddings=tied)
    source.save_pretrained(tmp_path)
    model = OURS.from_pretrained(tmp_path, residual="standard")
    assert torch.equal(model(tokens()).logits, source(tokens()).logits)


@pytest.mark.parametrize("argument", ["residual", "config"])
def test_the_dtype_and_attention_asked_for_are_given(argument, tmp_path):
    plain().save_pretrained(tmp_path)
    given = {"residual": "attn_res"} if argument == "residual" else {"config": config()}
    model = OURS.from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation="eager", **given
    )
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config.text_config._attn_implementation == "eager"


def test_a_plain_checkpoint_alone_is_refused_by_what_to_give(tmp_path):
    plain().save_pretrained(tmp_path)
    assert_refused("is a plain 'llama' checkpoint: give residual=", tmp_path)


def test_a_plain_checkpoint_of_a_family_without_an_adapter_is_refused(tmp_path):
    plain().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"opt"'))
    assert_refused("no adapter for the model family 'opt'", tmp_path, residual="attn_res")


def test_a_plain_config_is_refused_by_what_to_give(tmp_path):
    plain().save_pretrained(tmp_path)
    match = r"LlamaConfig: give AttnResCausalLMConfig\(text_config="
    assert_refused(match, tmp_path, config=LlamaConfig())


@pytest.mark.parametrize("saved", FAMILIES)
def test_another_family_is_refused(saved, tmp_path):
    plain(saved).save_pretrained(tmp_path)
    for family in FAMILIES:
        if family != saved:
            match = f"is a '{saved}' checkpoint, but text_config is a '{family}' one"
            assert_refused(match, tmp_path, config=config(family))


DIFFERENCES: dict[str, tuple[str, Any]] = {
    "rms_norm_eps": ("llama", 1e-5),
    "rope_parameters": ("llama", {"rope_type": "default", "rope_theta": 500.0}),
    "hidden_act": ("llama", "gelu"),
    "num_attention_heads": ("llama", 2),
    "num_key_value_heads": ("llama", 4),
    "head_dim": ("llama", 16),
    "sliding_window": ("mistral", 5),
    "layer_types": ("qwen3", ["full_attention", "sliding_attention", "full_attention"]),
    "num_hidden_layers": ("llama", 4),
    "tie_word_embeddings": ("llama", True),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("kind", ["plain", "attnres"])
@pytest.mark.parametrize("direction", ["there", "back"])
def test_another_setting_that_no_shape_shows_is_refused_by_name(name, kind, direction, tmp_path):
    family, value = DIFFERENCES[name]
    changes: list[dict[str, Any]] = [{}, {name: value}]
    saved, asked = changes if direction == "there" else reversed(changes)
    build_one: Any = plain if kind == "plain" else build
    build_one(family, **saved).save_pretrained(tmp_path)
    made = AttnResCausalLMConfig(
        text_config=text_config(family, **asked), residual="attn_res:sublayers_per_block=3"
    )
    text: Any = getattr(made.text_config, name)
    with pytest.raises(ValueError, match=f" has {name}=") as error:
        OURS.from_pretrained(tmp_path, config=made)
    assert f", but text_config has {text}" in str(error.value)


def test_settings_that_leave_the_function_alone_may_differ(tmp_path):
    plain().save_pretrained(tmp_path)
    asked = config(max_position_embeddings=128, attention_dropout=0.1, initializer_range=0.02)
    OURS.from_pretrained(tmp_path, config=asked)


def test_a_text_config_changed_by_a_keyword_is_checked_too(tmp_path):
    build().save_pretrained(tmp_path)
    match = "rms_norm_eps=1e-06, but text_config has 0.5"
    assert_refused(match, tmp_path, text_config={"rms_norm_eps": 0.5})
    assert_refused(match, tmp_path, rms_norm_eps=0.5)
    with pytest.raises(ValueError, match=match):
        AutoModelForCausalLM.from_pretrained(tmp_path, text_config={"rms_norm_eps": 0.5})


def test_a_config_by_its_path_is_checked_too(tmp_path):
    plain(rms_norm_eps=1e-5).save_pretrained(tmp_path / "plain")
    config().save_pretrained(tmp_path / "config")
    match = "rms_norm_eps=1e-05, but text_config has 1e-06"
    assert_refused(match, tmp_path / "plain", config=str(tmp_path / "config"))


def test_weights_that_are_missing_are_refused_by_the_first_and_their_number(tmp_path):
    source = plain()
    state = {f"wrong.{name}": value for name, value in source.state_dict().items()}
    source.save_pretrained(tmp_path, state_dict=state)
    first = "model.embed_tokens.weight"
    match = f"lacks 29 weights of the model, the first is {first}"
    assert_refused(match, tmp_path, config=config())
    assert_refused(match, tmp_path, residual="attn_res")


def test_one_missing_weight_is_refused(tmp_path):
    model = build()
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=dict(state))
    assert_refused("lacks 1 weights .* model.layers.1.mlp.up_proj.weight", tmp_path)
    assert_refused("lacks 1 weights", None, config=config(), state_dict=state)


@pytest.mark.parametrize("name", ["residual.readers.2.query", "lm_head.weight"])
def test_what_a_plain_checkpoint_may_lack_is_missed_in_one_of_ours(name, tmp_path):
    model = build()
    state = {key: tensor for key, tensor in model.state_dict().items() if key != name}
    model.save_pretrained(tmp_path, state_dict=state)
    assert_refused(f"lacks 1 weights of the model, the first is {name}", tmp_path)


def test_a_weight_of_another_shape_is_refused_by_its_name(tmp_path):
    build().save_pretrained(tmp_path)
    match = r"mlp.down_proj.weight has shape \[32, 48\], by the config it has \[32, 64\]"
    changed = {"text_config": {"intermediate_size": 64}, "ignore_mismatched_sizes": True}
    assert_refused(match, tmp_path, **changed)


def test_weights_that_the_model_has_no_place_for_are_refused(tmp_path):
    source = plain()
    state = {**source.state_dict(), "model.layers.0.mlp.up_proj.bias": torch.zeros(48)}
    source.save_pretrained(tmp_path, state_dict=state)
    match = "has 1 weights that the model lacks, the first is model.layers.0.mlp.up_proj.bias"
    assert_refused(match, tmp_path, residual="attn_res")


def test_a_known_leftover_is_no_reason_to_refuse(tmp_path):
    source = plain()
    leftover = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    source.save_pretrained(tmp_path, state_dict={**source.state_dict(), **leftover})
    OURS.from_pretrained(tmp_path, residual="attn_res")


def test_a_checkpoint_without_a_head_loads(tmp_path):
    base = AutoModel.from_config(text_config())
    base.save_pretrained(tmp_path)
    model = OURS.from_pretrained(tmp_path, residual="attn_res")
    state = model.model.state_dict()
    assert_same(state, base.state_dict())


def test_a_saved_config_without_its_residual_state_is_refused(tmp_path):
    build().save_pretrained(tmp_path)
    drop_from_config(tmp_path, "residual_state")
    for arguments in ({}, {"residual": "attn_res"}, {"config": config()}):
        assert_refused("has no residual_state", tmp_path, **arguments)


def test_the_caller_gets_loading_info_where_it_asks_alone(tmp_path):
    build().save_pretrained(tmp_path)
    assert isinstance(OURS.from_pretrained(tmp_path, output_loading_info=False), AttnResForCausalLM)
    model, info = OURS.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(model, AttnResForCausalLM)
    assert not info["missing_keys"]


def test_neither_a_path_nor_a_config_is_refused():
    assert_refused(r"NoneType: give AttnResCausalLMConfig\(", None)
