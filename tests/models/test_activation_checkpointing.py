"""Activation checkpointing: real, and without an effect on any number."""

from collections import Counter

import pytest
import tiny_families
import torch
from tiny_models import FAMILIES, RESIDUALS, assert_same, build, gradients, tokens
from torch import nn

from attnres.models.families import family_of

PARTS = {"self_attn", "attn", "attention", "mlp"}


def count_calls(model) -> Counter:
    """Counted before a sublayer runs, since recomputation stops at the last saved tensor."""
    calls: Counter = Counter()
    for i, layer in enumerate(model.model.layers):
        for name in ("self_attn", "mlp"):
            part = getattr(layer, name)
            part.register_forward_pre_hook(lambda *_, key=(i, name): calls.update([key]))
    return calls


def count_sublayers(model) -> Counter:
    """As above, of any family: by the layer, and the part of a sublayer."""
    calls: Counter = Counter()
    family = family_of(model.config.text_config)
    for i, layer in enumerate(getattr(model.base_model, family.layers)):
        for name in PARTS & dict(layer.named_children()).keys():
            part: nn.Module = getattr(layer, name)
            part.register_forward_pre_hook(lambda *_, key=(i, name): calls.update([key]))
    return calls


def step(model, **arguments) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    loss = model(tokens(), labels=tokens(), **arguments).loss
    loss.backward()
    return {"loss": loss.detach(), **gradients(model)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("enable", ["activation", "gradient"])
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_each_sublayer_runs_twice_and_no_number_changes(family, residual, enable):
    expected = step(build(family, residual, attention_dropout=0.3).train())
    model = build(family, residual, attention_dropout=0.3).train()
    getattr(model, f"{enable}_checkpointing_enable")()
    calls = count_calls(model)
    assert_same(step(model), expected)
    assert calls == {(i, name): 2 for i in range(3) for name in ("self_attn", "mlp")}


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_so_it_is_in_every_family(family):
    settings = tiny_families.dropouts(family)
    # with a cache GPT-2's attention takes another kernel, and checkpointing has no cache
    expected = step(tiny_families.build(family, **settings).train(), use_cache=False)
    model = tiny_families.build(family, **settings).train()
    model.activation_checkpointing_enable()
    calls = count_sublayers(model)
    assert_same(step(model, use_cache=False), expected)
    assert set(calls.values()) == {2}
    assert len(calls) == 2 * 3


def test_dropout_matters_in_these_tests():
    dropped = step(build(attention_dropout=0.3).train())
    assert not torch.equal(dropped["loss"], step(build().train())["loss"])


def test_it_can_be_turned_off_and_does_nothing_in_evaluation():
    model = build()
    model.activation_checkpointing_enable()
    calls = count_calls(model)
    step(model.eval())
    assert set(calls.values()) == {1}
    calls.clear()
    model.activation_checkpointing_disable()
    step(model.train())
    assert set(calls.values()) == {1}


def test_every_second_layer_may_be_checkpointed():
    model = build().train()
    model.activation_checkpointing_enable(every_n_layers=2)
    calls = count_calls(model)
    step(model)
    assert sorted(calls.values()) == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("value", [True, None])
@pytest.mark.parametrize("enable", ["activation", "gradient"])
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_reentrant_checkpointing_is_refused(enable, value):
    model = build()
    with pytest.raises(ValueError, match=f"use_reentrant must be False.* got {value}"):
        getattr(model, f"{enable}_checkpointing_enable")({"use_reentrant": value})
    model.activation_checkpointing_enable({"use_reentrant": False})
