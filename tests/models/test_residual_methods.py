"""Every residual method in a real model: it trains, is saved and loaded, and generates."""

from typing import Any

import pytest
import torch
from depth_methods import CONFIGS
from tiny_models import assert_same, gradients, plain, text_config, tokens

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.residual import format_residual

every_config = pytest.mark.parametrize("config", CONFIGS, ids=format_residual)


def build(config: Any) -> Any:
    """A tiny Llama joined by the method, whose parameters are moved from their start."""
    torch.manual_seed(0)
    text = text_config("llama", initializer_range=0.1)
    model: Any = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text, residual=config))
    for parameter in model.residual.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@every_config
def test_three_steps_lower_the_loss_and_move_every_parameter(config):
    model = build(config)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = model(tokens(), labels=tokens()).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert sorted(losses, reverse=True) == losses
    assert gradients(model).keys() == before.keys()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


@every_config
def test_a_saved_model_is_loaded_bit_for_bit(config, tmp_path):
    model = build(config).eval()
    model.save_pretrained(tmp_path)
    loaded = AttnResForCausalLM.from_pretrained(tmp_path)
    assert_same(loaded.state_dict(), model.state_dict())
    for parameter in loaded.parameters():  # the last bit of a product depends on the alignment
        parameter.data = parameter.data.clone()
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


@every_config
def test_greedy_text_with_a_cache_is_that_without(config):
    model = build(config).eval()
    settings = {"max_new_tokens": 6, "do_sample": False}
    cached = model.generate(tokens(), use_cache=True, **settings)
    assert torch.equal(model.generate(tokens(), use_cache=False, **settings), cached)
    assert cached.shape[1] == tokens().shape[1] + 6


@every_config
def test_a_method_over_a_plain_checkpoint_has_its_start(config, tmp_path):
    """Made on the meta device and initialised by transformers; what is drawn is not zero."""
    plain("llama").save_pretrained(tmp_path)
    model = AttnResForCausalLM.from_pretrained(tmp_path, residual=config)
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(config.build(32, 6).state_dict())
    for name, tensor in model.residual.state_dict().items():
        first, second = (state[name] for state in states)
        if torch.equal(first, second):
            assert torch.equal(tensor, first), name
        else:
            assert tensor.std().item() == pytest.approx(first.std().item(), rel=0.5), name
