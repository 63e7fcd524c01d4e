"""Every family that has an adapter: the standard residual is its own model, bit for bit."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_families import FAMILIES, SETTINGS, build, config, dropouts, plain, text_config
from tiny_models import assert_pieces_are_one_forward, assert_same, gradients, tokens
from torch import Tensor
from transformers import BertConfig, Gemma3nTextConfig, OPTConfig

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models import families as adapters
from attnres.models.checkpoint import SHAPELESS_SETTINGS
from attnres.models.families import family_of
from attnres.train.probe import measure

OURS: Any = AttnResForCausalLM
families = pytest.mark.parametrize("family", FAMILIES)


def step(model: Any) -> dict[str, Tensor]:
    """Logits, loss (with that of a router) and gradients of one step of training."""
    torch.manual_seed(3)
    out = model.train()(tokens(), labels=tokens())
    out.loss.backward()
    return {"logits": out.logits, "loss": out.loss, **gradients(model)}


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_standard_residual_is_the_plain_model(family, dtype):
    expected_model = plain(family, **dropouts(family)).to(dtype)
    model = build(family, "standard", **dropouts(family)).to(dtype)
    model.load_state_dict(expected_model.state_dict())
    expected = step(expected_model)
    assert_same(step(model), expected)
    assert {"logits", "loss"} < expected.keys()
    assert len(expected) == 2 + len(list(model.parameters()))


@families
def test_attention_and_experts_run_as_in_the_plain_model(family):
    model, expected = build(family).config, plain(family).config
    for made in (model, model.text_config):
        assert made._attn_implementation == expected._attn_implementation
        assert made._experts_implementation == expected._experts_implementation


@families
def test_greedy_text_with_a_cache_is_that_of_the_plain_model(family):
    prompt_BT, mask_BT = tokens(batch=3, length=9), torch.ones(3, 9, dtype=torch.long)
    prompt_BT[1, :3] = mask_BT[1, :3] = 0  # padded on the left
    settings = {"attention_mask": mask_BT, "max_new_tokens": 8, "do_sample": False}
    # the loss of a router takes no mask of more tokens than there are: transformers fails alike
    changes = {"output_router_logits": False} if "output_router_logits" in SETTINGS[family] else {}
    model = build(family, "standard", **changes).eval()
    text_BT = model.generate(prompt_BT, **settings)
    assert torch.equal(text_BT, plain(family, **changes).eval().generate(prompt_BT, **settings))
    assert len(text_BT.unique()) > 8


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "deepseek_v3", "kimi_linear"])
def test_what_a_family_keeps_in_float32_stays_so(family, tmp_path):
    source = plain(family)
    source.save_pretrained(tmp_path)
    expected = type(source).from_pretrained(tmp_path, dtype=torch.bfloat16)
    model = OURS.from_pretrained(tmp_path, dtype=torch.bfloat16, residual="standard")
    assert_same(model.state_dict(), expected.state_dict())
    for name, value in expected.state_dict().items():
        assert model.state_dict()[name].dtype == value.dtype, name
    assert torch.equal(model(tokens()).logits, expected(tokens()).logits)


@families
def test_dropout_and_the_loss_of_a_router_matter_in_these_tests(family):
    without = step(build(family, "standard"))
    if dropouts(family):
        dropped = step(build(family, "standard", **dropouts(family)))
        assert not torch.equal(dropped["loss"], without["loss"])
    if "output_router_logits" in SETTINGS[family]:
        alone = step(build(family, "standard", output_router_logits=False))
        assert torch.equal(alone["logits"], without["logits"])
        assert not torch.equal(alone["loss"], without["loss"])


@families
@pytest.mark.parametrize("residual", ["full", "block"])
def test_every_parameter_gets_a_gradient(family, residual):
    model = build(family, residual)
    found = step(model)
    for name, _ in model.named_parameters():
        assert found[name].isfinite().all(), name
        assert found[name].any(), name
    n_readers = model.config.n_sublayers
    assert len([name for name in found if name.startswith("residual.")]) == 2 * n_readers


@families
def test_tokens_in_pieces_are_one_forward(family):
    assert_pieces_are_one_forward(build(family).eval())


@families
def test_a_plain_checkpoint_loads_and_is_saved_by_its_own_names(family, tmp_path):
    source = plain(family).eval()
    source.save_pretrained(tmp_path / "plain")
    model = OURS.from_pretrained(tmp_path / "plain", residual="attn_res:sublayers_per_block=3")
    state = model.state_dict()
    assert_same({name: state[name] for name in source.state_dict()}, source.state_dict())
    model.save_pretrained(tmp_path / "joined")
    loaded = OURS.from_pretrained(tmp_path / "joined")
    assert_same(loaded.state_dict(), state)
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    standard = OURS.from_pretrained(tmp_path / "plain", residual="standard")
    assert torch.equal(standard(tokens()).logits, source(tokens()).logits)


DIFFERENCES = {
    "logits_scaling": ("granite", 4.0),
    "residual_multiplier": ("granite", 0.5),
    "embedding_multiplier": ("granite", 1.0),
    "attention_multiplier": ("granite", 0.5),
    "logit_scale": ("cohere", 1.0),
    "layer_norm_eps": ("phi", 1e-3),
    "layer_norm_epsilon": ("gpt2", 1e-3),
    "norm_epsilon": ("starcoder2", 1e-3),
    "activation_function": ("gpt2", "relu"),
    "scale_attn_weights": ("gpt2", False),
    "clip_qkv": ("olmo", 1.0),
    "final_logit_softcapping": ("gemma2", 3.0),
    "attn_logit_softcapping": ("gemma2", 3.0),
    "query_pre_attn_scalar": ("gemma3_text", 16),
    "use_bidirectional_attention": ("gemma3_text", True),
    "hidden_activation": ("gemma3_text", "relu"),
    "use_parallel_residual": ("gpt_neox", False),
    "num_experts_per_tok": ("mixtral", 1),
    "norm_topk_prob": ("qwen3_moe", True),
    "routed_scaling_factor": ("deepseek_v3", 1.0),
    "rope_interleave": ("deepseek_v3", False),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_another_setting_that_no_shape_shows_is_refused_by_name(name, tmp_path):
    family, value = DIFFERENCES[name]
    plain(family).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f" has {name}=.*, but text_config has {value}"):
        OURS.from_pretrained(tmp_path, config=config(family, **{name: value}))


def test_every_such_setting_is_that_of_a_family():
    made = [text_config(family) for family in FAMILIES]
    of_a_dict = {"gate_lower_bound"}  # linear_attn_config of Kimi K3, which other tests give
    for name in set(SHAPELESS_SETTINGS) - of_a_dict:
        assert any(hasattr(one, name) for one in made), name


@families
def test_a_pickled_model_is_the_model(family):
    model = build(family).eval()
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("family", ["cohere", "gpt_neox", "phi"])
def test_a_parallel_layer_is_one_read(family):
    model = build(family, "full")
    assert config(family).n_sublayers == 3
    assert len(model.residual.readers) == 4


@pytest.mark.parametrize("family", ["cohere", "gpt_neox", "phi"])
def test_layers_of_one_sublayer_are_not_counted_in_pairs(family):
    residual = {"method": "attn_res", "layers_per_block": 2}
    match = f"layers_per_block=2: .* {family} layer are one sublayer.*give sublayers_per_block=2"
    with pytest.raises(ValueError, match=match):
        AttnResCausalLMConfig(text_config=text_config(family), residual=residual)
    AttnResCausalLMConfig(text_config=text_config("gpt_neox in turn"), residual=residual)


@pytest.mark.parametrize("method", ["denseformer", "muddformer:ways=residual", "grn"])
def test_a_layer_of_one_sublayer_is_not_taken_for_two(method):
    text = text_config("gpt_neox")
    match = "sublayers_per_layer=2: a gpt_neox layer is 1 sublayer, so give sublayers_per_layer=1"
    with pytest.raises(ValueError, match=match):
        AttnResCausalLMConfig(text_config=text, residual=method)
    given = f"{method}{',' if ':' in method else ':'}sublayers_per_layer=1"
    model: Any = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text, residual=given))
    assert model(tokens()).logits.isfinite().all()


def test_a_probe_takes_parts_as_their_sum():
    measured = []
    for family, model in (("parts", build("cohere", "full")), ("sum", build("cohere", "full"))):
        for layer in model.model.layers:
            (sublayer,) = layer.sublayers
            layer.sublayers = (replace(sublayer, summed=family == "sum"),)
        measured.append(measure(model, tokens()))
    for name in ("output_rms", "stream_rms", "grad_norm"):
        assert measured[0][name] == pytest.approx(measured[1][name], rel=1e-4), name


def test_a_neox_layer_in_turn_is_two_reads():
    assert config("gpt_neox in turn").n_sublayers == 6


def compensated(model: Any) -> None:
    """Divide the epsilon of each norm by the square of the number of sources it then reads."""
    family = family_of(model.config.text_config)
    for depth, norms in enumerate(family.norms(model.base_model)):
        for norm in norms:
            eps = getattr(norm, str(family.eps))
            setattr(norm, str(family.eps), eps / model.residual.layout.n_sources(depth) ** 2)


def deviation(model: Any, expected: Tensor) -> float:
    actual = model(tokens()).logits
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@families
def test_norms_are_all_that_reads_the_mean_of_a_scale_free_family(family):
    small = {"initializer_range": 0.02}
    baseline = plain(family, **small).eval().double()
    model = build(family, "full", trained=False, **small).eval().double()
    model.load_state_dict(baseline.state_dict(), strict=False)
    if "num_experts_per_tok" in SETTINGS[family]:
        for each in (baseline, model):
            each.set_experts_implementation("eager")  # the default has no float64
    expected = baseline(tokens()).logits
    before = deviation(model, expected)
    adapter = family_of(model.config.text_config)
    if not adapter.scale_free:
        assert family == "olmo2"
        assert before > 0.1
    elif adapter.eps is None:
        assert family == "olmo"  # its epsilon is a number in the code
    else:
        compensated(model)
        assert deviation(model, expected) < min(1e-6, before / 10)


REFUSED = {
    "gemma3n_text": "AltUp",
    "gemma3n": "LAuReL",
    "deepseek_v4": "hyper-connections",
    "qwen4_exp": "hyper-connections",
    "inkling2": "attend over depth already",
    "bert": "every addition to its stream is normed",
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_family_without_one_sum_is_refused_with_the_reason(model_type):
    match = f"the model family '{model_type}' .*{REFUSED[model_type]}"
    with pytest.raises(ValueError, match=match) as error:
        adapters.check_family(model_type)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [BertConfig, Gemma3nTextConfig])
def test_a_config_of_a_refused_family_makes_no_model(kind):
    with pytest.raises(ValueError, match=f"the model family '{kind.model_type}' has no single sum"):
        AttnResCausalLMConfig(text_config=kind())


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no adapter for the model family 'opt'") as error:
        AttnResCausalLMConfig(text_config=OPTConfig())
    assert all(name in str(error.value) for name in adapters.FAMILIES)


def test_cross_attention_is_refused():
    with pytest.raises(ValueError, match="'gpt2' model with add_cross_attention=True"):
        AttnResCausalLMConfig(text_config=text_config("gpt2", add_cross_attention=True))


def test_every_adapter_has_a_tiny_model():
    assert {family.split()[0] for family in FAMILIES} == adapters.FAMILIES.keys()
