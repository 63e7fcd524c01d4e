"""A causal LM in two phases is that of `attn_res`; a checkpoint of one loads as the other."""

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, assert_same, build, gradients, text_config, tokens
from torch import Tensor

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.residual import AttnRes, TwoPhase, parse_residual
from attnres.train.recipe import ModelConfig

OURS: Any = AttnResForCausalLM
ONE, TWO = "attn_res:n_blocks=2", "two_phase:n_blocks=2"


def _step(model) -> dict[str, Tensor]:
    out = model(tokens(), labels=tokens())
    model.zero_grad()
    out.loss.backward()
    return {"logits": out.logits.detach(), **gradients(model)}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_one_phase(family):
    one, two = build(family, "block"), build(family, "two phases")
    assert isinstance(two.residual, TwoPhase)
    assert_same(two.state_dict(), one.state_dict())
    actual, expected = _step(two), _step(one)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        error, size = (actual[name] - value).abs().max(), value.abs().max()
        assert error <= 1e-4 * size, f"{name}: {error:.1e} of {size:.1e}"


@pytest.mark.parametrize(("saved", "asked"), [(ONE, TWO), (TWO, ONE), (TWO, TWO)])
@pytest.mark.parametrize("way", ["residual", "config"])
def test_a_saved_model_loads_in_the_other_number_of_phases(saved, asked, way, tmp_path):
    torch.manual_seed(0)
    model = OURS(AttnResCausalLMConfig(text_config=text_config(), residual=saved))
    for parameter in model.residual.parameters():
        torch.nn.init.normal_(parameter)
    model.eval().save_pretrained(tmp_path)
    config = AttnResCausalLMConfig(text_config=text_config(), residual=asked)
    given = {"residual": asked} if way == "residual" else {"config": config}
    loaded = OURS.from_pretrained(tmp_path, **given)
    assert isinstance(loaded.residual, TwoPhase if asked == TWO else AttnRes)
    assert_same(loaded.state_dict(), model.state_dict())
    actual, expected = loaded(tokens()).logits, model(tokens()).logits
    assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max()
    loaded.save_pretrained(tmp_path / "again")
    assert type(OURS.from_pretrained(tmp_path / "again").residual) is type(loaded.residual)


@pytest.mark.parametrize(("saved", "asked"), [(ONE, "two_phase:n_blocks=3"), (TWO, "attn_res")])
def test_another_layout_is_refused_in_either_number_of_phases(saved, asked, tmp_path):
    OURS(AttnResCausalLMConfig(text_config=text_config(), residual=saved)).save_pretrained(tmp_path)
    config = AttnResCausalLMConfig(text_config=text_config(), residual=asked)
    with pytest.raises(ValueError, match="but the model was made with"):
        OURS.from_pretrained(tmp_path, config=config)


def test_greedy_text_is_that_of_one_phase():
    texts = [
        build(residual=residual).eval().generate(tokens(), max_new_tokens=8, do_sample=False)
        for residual in ("block", "two phases")
    ]
    assert torch.equal(*texts)


def test_a_recipe_may_name_it():
    config = ModelConfig(residual=parse_residual("two_phase:n_blocks=4,readers_per_group=3"))
    model = config.build(vocab_size=97, seq_len=16)
    assert isinstance(model.residual, TwoPhase)
    assert model.residual.groups[3].last == 5
    assert model.config.residual_state["method"] == "attn_res"
