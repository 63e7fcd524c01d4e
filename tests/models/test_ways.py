"""Query, key and value each with a mix: an attention's projections take their own."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from tiny_families import FAMILIES, dropouts, plain, text_config
from tiny_families import build as build_family
from tiny_models import assert_pieces_are_one_forward, assert_same, gradients, tokens
from torch import Tensor

from attnres.models.families import family_of
from attnres.models.joined import WayProjection, WaysAttention
from attnres.models.taps import Tap
from attnres.residual import Standard, Ways

QKV = ("q_proj", "k_proj", "v_proj")
WITHOUT = {"gpt2", "gpt_neox", "gpt_neox in turn", "phi", "phi3", "cohere"}  # fused, or parallel
LATENT = {"deepseek_v3", "kimi_linear"}
WITH_WAYS = [family for family in FAMILIES if family not in WITHOUT | LATENT]
with_ways = pytest.mark.parametrize("family", WITH_WAYS)


class RolledWays(Standard):
    """The stream for the query; for key and value its channels moved on, `step` at a time."""

    step = 1

    def has_ways(self, depth: int) -> bool:
        return depth % 2 == 0

    def read(self, state: Tensor, depth: int) -> tuple[Any, Tensor]:
        h_BTD, state = super().read(state, depth)
        if not self.has_ways(depth):
            return h_BTD, state
        return Ways(*(h_BTD.roll(i * self.step, dims=-1) for i in range(3))), state


class EqualWays(RolledWays):
    step = 0


def build(family: str = "llama", kind: Any = RolledWays, **changes: Any) -> Any:
    model = build_family(family, "standard", **changes)
    model.residual = kind(model.config.n_sublayers)
    return model


def step(model: Any) -> dict[str, Tensor]:
    torch.manual_seed(3)
    out = model.train()(tokens(), labels=tokens())
    out.loss.backward()
    return {"logits": out.logits, "loss": out.loss, **gradients(model)}


@with_ways
def test_three_equal_ways_are_one(family):
    """Three gradients are added in another order than one by one to each projection's input."""
    expected = step(plain(family, **dropouts(family)))
    found = step(build(family, EqualWays, **dropouts(family)))
    assert torch.equal(found["logits"], expected["logits"])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name] - value).abs().max()
        assert error <= 1e-4 * value.abs().max(), name


@with_ways
def test_three_equal_ways_are_one_in_bfloat16(family):
    expected = plain(family).bfloat16()(tokens()).logits
    assert torch.equal(build(family, EqualWays).bfloat16()(tokens()).logits, expected)


@with_ways
def test_each_projection_takes_its_own_way(family):
    model = build(family).eval()
    layer = model.base_model.layers[1]
    out: dict[str, Tensor] = {}
    for name in QKV:
        projection = getattr(layer.self_attn, name)
        projection.register_forward_hook(
            lambda *given, name=name: out.update({name: given[-1].clone()})
        )
    taps: list[Tap] = []
    model(tokens(), taps=taps)
    assert taps[2].stream_BTD is not None
    for i, name in enumerate(QKV):
        way_BTD = taps[2].stream_BTD.roll(i, dims=-1)
        if hasattr(layer, "input_layernorm"):
            way_BTD = layer.input_layernorm(way_BTD)
        projection = getattr(layer.self_attn, name)
        torch.testing.assert_close(
            out[name], F.linear(way_BTD, projection.weight, projection.bias), atol=1e-5, rtol=1e-5
        )


def test_a_tap_sees_the_way_of_the_values():
    model, taps = build(), []
    found = model(tokens(), taps=taps, output_hidden_states=True).hidden_states
    for depth, tap in enumerate(taps[:-1]):
        expected_BTD = tap.stream_BTD.roll(2, dims=-1) if depth % 2 == 0 else tap.stream_BTD
        assert torch.equal(tap.mix_BTD, expected_BTD)
        assert torch.equal(found[depth], expected_BTD)


@with_ways
def test_tokens_in_pieces_are_one_forward(family):
    assert_pieces_are_one_forward(build(family).eval())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_it_compiles_in_one_graph(family):
    model = build(family).eval()
    expected = model(tokens(), use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens(), use_cache=False).logits, expected)


def test_checkpointing_changes_no_bit():
    expected = step(build())
    model = build()
    model.activation_checkpointing_enable()
    assert_same(step(model), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_the_model(copied):
    model = build("qwen3").eval()
    again = copied(model)
    attention = again.model.layers[0].self_attn
    assert isinstance(attention, WaysAttention)
    assert isinstance(attention.q_proj, WayProjection)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    attention.q_proj = torch.nn.Linear(32, 32)  # a copy goes on as the model does
    again(tokens())


@pytest.mark.parametrize("family", ["llama", "qwen2", "olmo2"])
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_lora_adapts_a_projection_that_takes_its_way(family):
    model = build(family).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    settings: Any = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["k_proj"]}
    peft: Any = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **settings))
    peft(tokens(), labels=tokens()).loss.backward()
    assert all(gradient.any() for gradient in gradients(peft).values())
    expected = peft(tokens()).logits
    with peft.disable_adapter():
        assert torch.equal(peft(tokens()).logits, build(family).eval()(tokens()).logits)
    merged = peft.merge_and_unload()
    error = (merged(tokens()).logits - expected).abs().max()
    assert error <= 1e-4 * expected.abs().max()
    assert merged.state_dict().keys() == before.keys()
    assert isinstance(merged.base_model.layers[0].self_attn.q_proj, WayProjection)


def test_another_residual_without_ways_takes_over():
    model = build()
    model.residual = Standard(model.config.n_sublayers)
    assert torch.equal(model(tokens()).logits, plain("llama")(tokens()).logits)


@pytest.mark.parametrize("family", sorted(WITHOUT | LATENT))
def test_a_family_whose_attention_has_one_input_is_refused_by_name(family):
    name = family.split()[0]
    match = f"RolledWays reads for query, key and value apart, .* sublayer 0 of a '{name}' model"
    with pytest.raises(ValueError, match=match):
        build(family)


def test_ways_for_an_mlp_are_refused():
    class EverywhereWays(RolledWays):
        def has_ways(self, depth: int) -> bool:
            return True

    with pytest.raises(ValueError, match="but sublayer 1 of a 'llama' model is no attention"):
        build(kind=EverywhereWays)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_says_which_projections_there_are(family):
    """So that one that could take ways is not forgotten, nor one that could not let in."""
    attention: Any = family_of(text_config(family)).sublayers[0]
    assert getattr(attention, "projections", ()) == (QKV if family in WITH_WAYS else ())
