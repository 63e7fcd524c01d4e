"""Taps, and `output_hidden_states=True`: the mixes, one a read, and nothing of them is kept."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import tiny_families
import torch
from tiny_models import RESIDUALS, assert_same, build, gradients, tokens
from torch import Tensor, nn

from attnres.models.families import family_of
from attnres.models.taps import Tap, normed, weights_by_depth

residuals = pytest.mark.parametrize("residual", RESIDUALS)


def mixes(model: Any, **arguments: Any) -> tuple[Tensor, ...]:
    return model(tokens(), output_hidden_states=True, **arguments).hidden_states


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_at_layer_starts_the_standard_residual_has_the_hidden_states_of_the_plain_model(family):
    plain = tiny_families.plain(family).eval()
    model = tiny_families.build(family, "standard").eval()
    expected = mixes(plain)[:-1]  # their last is normed
    per_layer = len(family_of(model.config.text_config).sublayers)
    found = mixes(model)
    assert len(found) == per_layer * 3 + 1
    assert len(expected) == 3
    assert all(map(torch.equal, found[:-1:per_layer], expected))


def note(read: dict[int, Tensor], depth: int, norm: nn.Module, arguments: Any) -> None:
    read[depth] = arguments[0]


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
@pytest.mark.parametrize("residual", ["full", "block"])
def test_an_entry_is_what_the_norm_of_its_sublayer_reads(family, residual):
    model = tiny_families.build(family, residual).eval()
    norms = family_of(model.config.text_config).norms(model.base_model)
    read: dict[int, Tensor] = {}
    for depth, of_one in enumerate(norms[:-1]):
        for norm in of_one:
            norm.register_forward_pre_hook(partial(note, read, depth))
    found = mixes(model)
    assert len(found) == len(norms) == model.config.n_sublayers + 1
    assert len(read) == (model.config.n_sublayers if family != "olmo2" else 0)
    assert all(torch.equal(found[depth], h_BTD) for depth, h_BTD in read.items())
    (final_norm,) = norms[-1]
    own = type(final_norm).__bases__[1]
    normed_BTD = own.forward(final_norm, found[-1])
    assert torch.equal(normed_BTD, model.base_model(tokens()).last_hidden_state)


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_taps_are_the_running_sum_and_the_mix_and_give_the_normed_mix(family, checkpointing):
    model = tiny_families.build(family, **no_dropout(family)).train()
    if checkpointing:
        model.activation_checkpointing_enable()
    calls: list[Tensor] = []
    for of_one in family_of(model.config.text_config).norms(model.base_model):
        for norm in of_one:
            norm.register_forward_hook(lambda *call: calls.append(call[-1]))
    taps: list[Tap] = []
    out = model(tokens(), output_hidden_states=True, taps=taps, use_cache=False)
    assert all(tap.mix_BTD is mix for tap, mix in zip(taps, out.hidden_states, strict=True))
    expected = list(calls)
    flat = [h_BTD for of_one in normed(model, taps) for h_BTD in of_one]
    assert len(flat) == len(expected)
    assert all(map(torch.equal, flat, expected))
    assert torch.equal(flat[-1], model.base_model(tokens(), use_cache=False).last_hidden_state)


def no_dropout(family: str) -> dict[str, Any]:
    return dict.fromkeys(tiny_families.dropouts(family), 0.0)


def test_the_running_sum_is_that_which_the_last_output_was_added_to():
    taps: list[Tap] = []
    model = build(residual="block").eval()
    outputs: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda *call: outputs.append(call[-1][0]))
        layer.mlp.register_forward_hook(lambda *call: outputs.append(call[-1]))
    model(tokens(), taps=taps)
    embed_BTD = model.model.embed_tokens(tokens())
    a, b, c, d, e, f = outputs  # blocks of three
    expected = [embed_BTD, a, a + b, a + b + c, d, d + e, d + e + f]
    for tap, stream_BTD in zip(taps, expected, strict=True):
        assert tap.stream_BTD is not None
        assert torch.equal(tap.stream_BTD, stream_BTD)
    standard: list[Tap] = []
    build(residual="standard")(tokens(), taps=standard)
    assert all(tap.stream_BTD is tap.mix_BTD for tap in standard)


@residuals
def test_asking_changes_no_number_and_the_last_loss_may_use_them(residual):
    model = build(residual=residual)
    expected = model(tokens()).logits
    out = model(tokens(), output_hidden_states=True)
    assert torch.equal(out.logits, expected)
    assert all(mix.requires_grad for mix in out.hidden_states)
    out.hidden_states[-1].square().mean().backward()
    assert model.model.embed_tokens.weight.grad.any()


def step(model: Any) -> dict[str, Tensor]:
    """The mixes and the gradients of a loss that uses each of them."""
    found = mixes(model)
    torch.stack([mix.square().mean() for mix in found]).sum().backward()
    return {**dict(zip(map(str, range(len(found))), found, strict=True)), **gradients(model)}


@residuals
def test_activation_checkpointing_changes_no_mix_and_no_gradient(residual):
    expected = step(build(residual=residual).train())
    model = build(residual=residual).train()
    model.activation_checkpointing_enable()
    assert_same(step(model), expected)


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["standard", "block"])
def test_compiled_mixes_are_those_of_the_eager_model(residual):
    expected = step(build(residual=residual))
    model = build(residual=residual)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = mixes(compiled, use_cache=False)
    assert len(found) == 7
    for i, mix in enumerate(found):
        torch.testing.assert_close(mix, expected[str(i)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "places"), [([0], {0}), ([1, -1], {1, 6}), (-2, {5}), ([7, -8], set())]
)
def test_indices_choose_some(asked, places):
    model = build()
    found = model(tokens(), output_hidden_states=asked).hidden_states
    assert [mix is not None for mix in found] == [place in places for place in range(7)]
    everything = mixes(model)
    assert all(torch.equal(found[place], everything[place]) for place in places)


@pytest.mark.parametrize("part", ["config", "text_config"])
def test_a_config_may_ask(part):
    model = build()
    getattr(model.config, part, model.config).output_hidden_states = True
    assert len(model(tokens()).hidden_states) == 7
    assert model(tokens(), output_hidden_states=False).hidden_states is None


def test_none_are_given_where_nobody_asks():
    assert build()(tokens()).hidden_states is None


def test_generate_returns_those_of_every_step():
    settings = {"max_new_tokens": 3, "return_dict_in_generate": True, "output_hidden_states": True}
    steps = build().eval().generate(tokens(), do_sample=False, **settings).hidden_states
    assert [len(found) for found in steps] == [7] * 3
    assert [found[0].shape[1] for found in steps] == [11, 1, 1]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "cohere"])
def test_the_base_model_alone_refuses(family):
    model = tiny_families.build(family)
    with pytest.raises(ValueError, match="output_hidden_states: ask the causal LM"):
        model.base_model(tokens(), output_hidden_states=True)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_is_kept_of_them(checkpointing):
    model = build().train()
    if checkpointing:
        model.activation_checkpointing_enable()
    gc.disable()
    try:
        out = model(tokens(), output_hidden_states=True)
        alive = [weakref.ref(mix) for mix in out.hidden_states]
        del out
        assert not any(each() is not None for each in alive)
    finally:
        gc.enable()


def test_weights_by_depth_are_those_of_what_the_readers_find():
    model = build().eval()
    expected: list[Tensor] = []
    for reader in model.residual.readers:
        reader.register_forward_pre_hook(
            lambda reader, found: expected.append(reader.weights(found[0]))
        )
    logits_BTV = model(tokens()).logits
    weights = weights_by_depth(model, tokens())
    assert [tuple(alpha_SBT.shape) for alpha_SBT in weights] == [
        (n_sources, 2, 11) for n_sources in (1, 2, 2, 2, 3, 3, 3)
    ]
    assert all(map(torch.equal, weights, expected[:7]))
    assert not {"read", "finish"} & vars(model.residual).keys()
    assert torch.equal(model(tokens()).logits, logits_BTV)


def test_a_method_without_depth_weights_has_none_by_depth_and_still_runs():
    model = build(residual="standard")
    with pytest.raises(NotImplementedError, match="Standard has no depth weights"):
        weights_by_depth(model, tokens())
    assert not {"read", "finish"} & vars(model.residual).keys()
