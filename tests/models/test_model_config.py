"""The config of a causal LM: what it keeps, derives and refuses."""

import pickle
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, config, text_config, tokens
from transformers import BloomConfig, LlamaConfig, OPTConfig

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.residual import AttnResConfig

LAYOUT = {"unit": "sublayers", "sizes": [3, 3], "counting": 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_of_the_residual_is_derived(family):
    state = {"method": "attn_res", "layout": LAYOUT, "eps": 1e-6}
    assert config(family).residual_state == state
    assert config(family).n_sublayers == 6
    assert config(family, "standard").residual_state == {"method": "standard"}


@pytest.mark.parametrize("kind", [BloomConfig, OPTConfig])
def test_a_family_without_an_adapter_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"no adapter for the model family '{kind.model_type}'"):
        AttnResCausalLMConfig(text_config=kind())


def test_an_unknown_method_or_setting_is_refused():
    with pytest.raises(ValueError, match="no residual method 'highroad'"):
        AttnResCausalLMConfig(text_config=text_config(), residual={"method": "highroad"})
    with pytest.raises(ValueError, match="block_size has no unit"):
        AttnResCausalLMConfig(
            text_config=text_config(), residual={"method": "attn_res", "block_size": 4}
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "attn_res", "layout": LAYOUT, "eps": 1e-5},
        {"method": "attn_res", "layout": {**LAYOUT, "counting": 0}, "eps": 1e-6},
        {"method": "attn_res", "layout": {**LAYOUT, "sizes": [4, 2]}, "eps": 1e-6},
        {"method": "standard"},
    ],
)
def test_a_state_that_disagrees_is_refused_in_one_line_with_both_values(wrong):
    residual = config().residual
    with pytest.raises(ValueError, match="but the model was made with") as error:
        AttnResCausalLMConfig(text_config=text_config(), residual=residual, residual_state=wrong)
    assert str(wrong) in str(error.value)
    assert str(config().residual_state) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_edited_after_it_was_made_builds_no_model():
    edited = config()
    edited.residual = {"method": "attn_res", "sublayers_per_block": 2}
    with pytest.raises(ValueError, match=r"'sizes': \[2, 2, 2\].* was made with .*\[3, 3\]"):
        AttnResForCausalLM(edited)


@pytest.mark.parametrize("given", ["config", "dict"])
def test_the_whole_model_takes_the_settings_of_its_text_config(given):
    text = text_config(dtype="bfloat16", tie_word_embeddings=True, attn_implementation="eager")
    made = AttnResCausalLMConfig(text_config=text if given == "config" else text.to_dict())
    assert made.tie_word_embeddings
    assert made.dtype == torch.bfloat16
    if given == "config":  # transformers writes no attention implementation
        assert AttnResForCausalLM(made).config.text_config._attn_implementation == "eager"


def test_a_model_has_one_dtype_whatever_its_text_config_says():
    model = AttnResForCausalLM(config(dtype="bfloat16"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(tokens()).logits.dtype == torch.float32
    made = AttnResForCausalLM._from_config(config(dtype="bfloat16"))
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}
    assert made(tokens()).logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name", ["sublayers_per_block", "layers_per_block", "n_blocks", "block_size", "eps", "method"]
)
def test_a_setting_of_the_residual_outside_it_is_refused(name):
    settings: dict[str, Any] = {name: 2}
    with pytest.raises(ValueError, match=rf"{name}=2 .*residual={{") as error:
        AttnResCausalLMConfig(text_config=text_config(), **settings)
    units = "sublayers (the paper, FLA) or layers (Kimi K3, Megatron)"
    assert (units in str(error.value)) == (name == "block_size")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [{"method": "attn_res", "n_blocks": 2}, AttnResConfig(n_blocks=2), "attn_res:n_blocks=2"],
    ids=["dict", "config", "text"],
)
def test_the_residual_may_be_a_dict_a_config_or_a_text(given, tmp_path):
    made = AttnResCausalLMConfig(text_config=text_config(), residual=given)
    assert made.residual_state == config().residual_state
    changed = config("llama", "standard")
    changed.residual = given
    assert changed.residual_config == AttnResConfig(n_blocks=2)
    made.save_pretrained(tmp_path)
    assert AttnResCausalLMConfig.from_pretrained(tmp_path).residual == made.residual


def test_a_given_dict_is_copied():
    given = {"method": "attn_res", "n_blocks": 2}
    made = AttnResCausalLMConfig(text_config=text_config(), residual=given)
    given["n_blocks"] = 3
    assert made.residual_config == AttnResConfig(n_blocks=2)


@pytest.mark.parametrize("wrong", [2, ["attn_res"]])
def test_a_residual_of_another_type_is_refused(wrong):
    with pytest.raises(ValueError, match="residual is a dict, a config"):
        AttnResCausalLMConfig(text_config=text_config(), residual=wrong)


def test_a_text_config_by_name_is_refused():
    with pytest.raises(ValueError, match=r"text_config is a config, .*LlamaConfig.*got 'llama'"):
        AttnResCausalLMConfig(text_config="llama")


def test_a_model_of_a_plain_config_is_refused():
    with pytest.raises(ValueError, match=r"LlamaConfig: give AttnResCausalLMConfig\(text_config="):
        AttnResForCausalLM(LlamaConfig())  # pyright: ignore  that is the mistake


def test_what_only_the_text_config_says_is_read_and_set_there():
    made = config(tie_word_embeddings=True)
    assert (made.vocab_size, made.rms_norm_eps) == (97, 1e-6)
    made.rms_norm_eps = 0.5
    assert made.text_config.rms_norm_eps == 0.5
    assert "rms_norm_eps" not in {name for name in made.to_dict() if name != "text_config"}
    with pytest.raises(AttributeError, match="vocab"):
        _ = made.n_vocab
    assert pickle.loads(pickle.dumps(made)).vocab_size == 97
