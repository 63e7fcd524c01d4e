"""Saving, loading and initialisation through transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    FAMILIES,
    RESIDUALS,
    assert_same,
    build,
    config,
    plain,
    randomise_readers,
    text_config,
    tokens,
)
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM

OURS: Any = AttnResForCausalLM
LOADERS = [AttnResForCausalLM, AutoModelForCausalLM]


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def assert_start_values(model: Any) -> None:
    """Zero queries and unit gains in every reader, and at least one of them."""
    readers = dict(model.residual.named_parameters())
    assert readers
    for name, parameter in readers.items():
        start = 0.0 if name.endswith("query") else 1.0
        assert torch.equal(parameter, torch.full_like(parameter, start)), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("loader", LOADERS)
def test_a_reloaded_model_is_the_saved_one(family, residual, tied, loader, tmp_path):
    model = build(family, residual, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded, info = loader.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, AttnResForCausalLM)
    assert not any(info[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert_same(loaded.state_dict(), model.state_dict())
    assert torch.equal(loaded(tokens()).logits, model.eval()(tokens()).logits)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_saved_config_keeps_the_residual_and_what_no_shape_shows(residual, tmp_path):
    made = config(residual=residual)
    made.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["residual"] == RESIDUALS[residual]
    assert saved["residual_state"] == made.residual_state
    if residual != "standard":
        assert saved["residual_state"]["layout"]["counting"] == 1
        assert saved["residual_state"]["eps"] == 1e-6
    for kind in (AutoConfig, AttnResCausalLMConfig):
        loaded = kind.from_pretrained(tmp_path)
        assert type(loaded) is AttnResCausalLMConfig
        assert loaded.to_diff_dict() == made.to_diff_dict()


def test_shards_are_joined_again(tmp_path):
    model = build()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(AttnResForCausalLM.from_pretrained(tmp_path).state_dict(), model.state_dict())


def test_bfloat16_is_kept_and_may_be_asked_for(tmp_path):
    model = AttnResForCausalLM._from_config(config(), dtype=torch.bfloat16)
    randomise_readers(model)
    model.save_pretrained(tmp_path / "bfloat16")
    kept = AttnResForCausalLM.from_pretrained(tmp_path / "bfloat16")
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.bfloat16}
    assert torch.equal(kept(tokens()).logits, model.eval()(tokens()).logits)
    wide = build()
    wide.save_pretrained(tmp_path / "float32")
    asked = AttnResForCausalLM.from_pretrained(tmp_path / "float32", dtype=torch.bfloat16)
    assert_same(asked.state_dict(), wide.bfloat16().state_dict())


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("way", ["config", "residual"])
@pytest.mark.parametrize(
    "other",
    [{"method": "attn_res", "sublayers_per_block": 2}, {"method": "standard"}],
)
def test_another_residual_than_the_saved_is_refused(loader, way, other, tmp_path):
    build().save_pretrained(tmp_path)
    asked = AttnResCausalLMConfig(text_config=text_config(), residual=other)
    argument = {"config": asked} if way == "config" else {"residual": other}
    with pytest.raises(ValueError, match="but the model was made with") as error:
        loader.from_pretrained(tmp_path, **argument)
    assert str(asked.residual_state) in str(error.value)
    assert "[3, 3]" in str(error.value)
    assert "\n" not in str(error.value)


def test_another_spelling_of_the_saved_residual_is_taken(tmp_path):
    model = build()
    model.save_pretrained(tmp_path)
    same = {"method": "attn_res", "n_blocks": 2, "eps": 1e-6}
    loaded = AttnResForCausalLM.from_pretrained(tmp_path, residual=same)
    assert torch.equal(loaded(tokens()).logits, model.eval()(tokens()).logits)


def test_a_checkpoint_in_a_subfolder_is_checked_too(tmp_path):
    build().save_pretrained(tmp_path / "step_10")
    asked = config(residual="full")
    with pytest.raises(ValueError, match=r"made with .*\[3, 3\]"):
        AttnResForCausalLM.from_pretrained(tmp_path, subfolder="step_10", config=asked)


@pytest.mark.parametrize(
    "edit",
    [
        {"residual": {"method": "attn_res", "sublayers_per_block": 2}},
        {"residual": {"method": "attn_res", "sublayers_per_block": 3, "eps": 1e-5}},
        {"residual": {"method": "standard"}},
        {
            "residual_state": {
                "method": "attn_res",
                "layout": {"unit": "sublayers", "sizes": [3, 3], "counting": 0},
                "eps": 1e-6,
            }
        },
    ],
    ids=["layout", "eps", "method", "counting"],
)
def test_an_edited_config_file_is_refused(edit, tmp_path):
    build().save_pretrained(tmp_path)
    edit_config(tmp_path, **edit)
    with pytest.raises(ValueError, match="but the model was made with") as error:
        AttnResForCausalLM.from_pretrained(tmp_path)
    assert "[3, 3]" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", ["full", "block"])
def test_readers_that_a_plain_checkpoint_lacks_have_their_start_values(family, residual, tmp_path):
    source = plain(family)
    source.save_pretrained(tmp_path)
    model, info = OURS.from_pretrained(
        tmp_path, config=config(family, residual), output_loading_info=True
    )
    assert info["missing_keys"] == {f"residual.{name}" for name in model.residual.state_dict()}
    assert not info["unexpected_keys"]
    assert_start_values(model)
    state = model.state_dict()
    assert_same({name: state[name] for name in source.state_dict()}, source.state_dict())


def test_readers_that_the_checkpoint_has_are_kept_beside_one_that_it_lacks():
    model = build()
    state = model.state_dict()
    lost = {name: state.pop(name) for name in list(state) if "readers.2." in name}
    loaded, info = OURS.from_pretrained(
        None, config=config(), state_dict=state, output_loading_info=True
    )
    assert info["missing_keys"] == lost.keys()
    found = loaded.state_dict()
    assert_same({name: found[name] for name in state}, state)
    assert not found["residual.readers.2.query"].any()
    assert torch.equal(found["residual.readers.2.key_weight"], torch.ones(32))


def test_a_plain_checkpoint_without_a_config_of_ours_is_refused(tmp_path):
    plain().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a plain 'llama' checkpoint: give residual="):
        AttnResForCausalLM.from_pretrained(tmp_path)


def test_weights_may_come_without_a_folder():
    model = build()
    loaded = OURS.from_pretrained(None, config=config(), state_dict=model.state_dict())
    assert_same(loaded.state_dict(), model.state_dict())


@pytest.mark.parametrize("residual", ["full", "block"])
def test_a_new_model_has_zero_queries_and_unit_gains(residual):
    assert_start_values(AttnResForCausalLM(config(residual=residual)))
    assert_start_values(AutoModelForCausalLM.from_config(config(residual=residual)))


def test_the_initialisation_of_transformers_restores_the_start_values():
    model = build(initializer_range=0.5)
    for module in model.modules():
        module._is_hf_initialized = False  # pyright: ignore  transformers marks what it has done
    model.init_weights()
    assert_start_values(model)
    assert 0.4 < model.lm_head.weight.std() < 0.6


def test_a_model_of_the_meta_device_is_initialised_where_it_is_put():
    with torch.device("meta"):
        model = AttnResForCausalLM(config())
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, float("nan"))
    model.init_weights()
    assert_start_values(model)
    expected = build(trained=False)
    expected.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens()).logits, expected(tokens()).logits)
    assert model(tokens()).logits.isfinite().all()


def test_all_layers_are_of_one_class_by_which_sharding_finds_them():
    model = build()
    kinds = {type(layer) for layer in model.model.layers}
    assert len(kinds) == 1
    assert type(build().model.layers[0]) in kinds
    assert model._no_split_modules == {kind.__name__ for kind in kinds}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_one_of_its_family_by_a_class_of_one_name(family, tmp_path):
    model = build(family)
    assert isinstance(model, AttnResForCausalLM)
    assert isinstance(model, type(plain(family)))
    assert type(model) is type(build(family))
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["architectures"] == ["AttnResForCausalLM"]
    assert saved["text_config"]["model_type"] == family


def test_weights_are_drawn_as_the_family_draws_them():
    drawn = build(residual="block", trained=False).state_dict()
    expected = plain().state_dict()
    assert_same({name: drawn[name] for name in expected}, expected)


class Named(AttnResForCausalLM):
    """A class of a user."""


def test_a_class_loads_what_another_of_its_kind_has_saved(tmp_path):
    for family in ("llama", "qwen3"):
        build(family).save_pretrained(tmp_path / family)
        expected = build(family)(tokens()).logits
        for kind in (type(build("mistral")), Named, type(Named(config()))):
            loaded = kind.from_pretrained(tmp_path / family)
            assert isinstance(loaded, kind if kind is Named else AttnResForCausalLM)
            assert isinstance(loaded, type(plain(family)))
            assert torch.equal(loaded(tokens()).logits, expected)


def test_torch_may_make_an_empty_copy():
    model = build()
    assert type(model._replicate_for_data_parallel()) is type(model)
