"""A model that is run in parts, each given the state that the one before left, is the model."""

from typing import Any

import pytest
import torch
from tiny_families import FAMILIES, SETTINGS, build, dropouts
from tiny_models import assert_same, gradients, tokens
from torch import Tensor

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.part import Part

OTHERS = {  # where a method has its own kind of state or of mix
    "two phases": {"method": "two_phase", "sublayers_per_block": 3},
    "standard": {"method": "standard"},
    "centered": {"method": "centered", "sublayers_per_block": 3},
    "streams": {"method": "mhc", "n_streams": 2},
    "ways": {"method": "muddformer"},
}


def step(model: Any, run: Any) -> dict[str, Tensor]:
    """Logits, loss and gradients of one step of training."""
    model.zero_grad()
    torch.manual_seed(3)
    outputs = run()
    outputs.loss.backward()
    return {"logits": outputs.logits.detach(), "loss": outputs.loss.detach(), **gradients(model)}


def in_parts(model: Any, tokens_BT: Tensor, cuts: tuple[int, ...]) -> Any:
    x_BTD = torch.zeros(()).expand(*tokens_BT.shape, 32)
    inputs, state = {"input_ids": tokens_BT}, None
    for start, stop in zip((0, *cuts[:-1]), cuts, strict=True):
        left: list[Any] = []
        model.base_model(**inputs, use_cache=False, part=Part(start, stop, state, left))
        (state,), inputs = left, {"inputs_embeds": x_BTD}
    part = Part(cuts[-1], model.config.n_sublayers, state)
    return model(**inputs, labels=tokens_BT, use_cache=False, part=part)


def assert_parts_are_the_whole(model: Any, cuts: tuple[int, ...]) -> None:
    tokens_BT = tokens()
    expected = step(model, lambda: model(tokens_BT, labels=tokens_BT, use_cache=False))
    assert_same(step(model, lambda: in_parts(model, tokens_BT, cuts)), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_parts(family):
    settings = SETTINGS[family].keys() & {"output_router_logits"}
    changes: dict[str, Any] = dict.fromkeys(dropouts(family), 0.0) | dict.fromkeys(settings, False)
    model = build(family, **changes)
    one_sublayer_a_layer = model.config.n_sublayers == 3
    assert_parts_are_the_whole(model.train(), (1, 2) if one_sublayer_a_layer else (1, 2, 5))


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_a_method_in_parts(settings):
    torch.manual_seed(0)
    text_config = build("llama").config.text_config
    model = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text_config, residual=settings))
    assert_parts_are_the_whole(model.train(), (3, 4))


def test_a_part_may_be_checkpointed():
    model = build("llama").train()
    expected = step(model, lambda: in_parts(model, tokens(), (1, 4)))
    model.activation_checkpointing_enable()
    assert_same(step(model, lambda: in_parts(model, tokens(), (1, 4))), expected)


def test_hooks_of_layers_outside_a_part_do_not_run():
    model = build("llama")
    called: list[int] = []
    for i, layer in enumerate(model.base_model.layers):
        layer.register_forward_hook(lambda *_, i=i: called.append(i))
    left: list[Any] = []
    model.base_model(tokens(), use_cache=False, part=Part(0, 3, left=left))
    assert called == [0, 1]
    assert len(left) == 1
