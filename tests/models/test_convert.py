"""Conversion keeps a model's function: bit for bit where centered, else to rounding."""

import copy
from typing import Any

import pytest
import tiny_families
import torch
from error_budget import assert_as_good_as
from tiny_models import (
    FAMILIES,
    assert_same,
    build,
    compute_norms_in_their_dtype,
    gradients,
    plain,
    randomise_readers,
    tokens,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM, OPTConfig

from attnres.models import AttnResForCausalLM, change_form, convert, revert, self_test
from attnres.models.sublayers import Branch
from attnres.residual import AttnResConfig, CenteredConfig

LAYOUTS: dict[str, Any] = {
    "full": CenteredConfig(),
    "blocks of 3": {"method": "centered", "sublayers_per_block": 3},
    "one block": "centered:n_blocks=1",
}
FORMS = ["centered", "sum", "mean"]
every_family = pytest.mark.parametrize("family", tiny_families.FAMILIES)
float64_family = pytest.mark.parametrize("family", FAMILIES)  # with norms that can compute in it
every_form = pytest.mark.parametrize("form", FORMS)


def logits(model: Any, tokens_BT: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens() if tokens_BT is None else tokens_BT).logits


def backward(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    return {name: gradient.clone() for name, gradient in gradients(model).items()}


@every_family
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_centered_is_the_model_bit_for_bit(family, layout, dtype):
    original = tiny_families.plain(family).to(dtype)
    reports = []
    converted = convert(original, layout, report=reports.append)
    assert isinstance(converted, AttnResForCausalLM)
    assert {p.dtype for p in converted.parameters()} == {dtype}
    assert torch.equal(logits(converted), logits(original))
    (found,) = reports
    assert (found.is_equal, found.largest_difference, found.relative_error) == (True, 0.0, 0.0)
    assert (found.greedy_agreement, found.n_positions) == (1.0, 48)


@float64_family
def test_centered_has_the_gradients_of_the_model_and_its_own(family, monkeypatch):
    """To rounding: autograd adds the gradients of a norm's input in another order."""
    original = plain(family).double().train()
    compute_norms_in_their_dtype(monkeypatch, original)
    expected = backward(original)
    converted = convert(original, n_blocks=2)
    assert converted.training
    found = backward(converted)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-12, msg=name)
    queries = [name for name in found if name.endswith("query")]
    assert len(queries) == 6
    assert all(found[name].abs().max() > 0 for name in queries)


@every_family
def test_centered_generates_the_same_text_with_and_without_a_cache(family):
    # the loss of a router takes no mask of more tokens than there are: transformers fails alike
    router = {"output_router_logits": False}
    changes = router if router.keys() & tiny_families.SETTINGS[family].keys() else {}
    original = tiny_families.plain(family, **changes).eval()
    converted: Any = convert(original, sublayers_per_block=3)
    assert not converted.training
    prompt_BT, mask_BT = tokens(batch=2, length=5), torch.ones(2, 5, dtype=torch.long)
    prompt_BT[1, :2] = mask_BT[1, :2] = 0
    for use_cache in (True, False):
        settings: Any = {"max_new_tokens": 8, "do_sample": False, "use_cache": use_cache}
        expected = original.generate(prompt_BT, attention_mask=mask_BT, **settings)
        actual = converted.generate(prompt_BT, attention_mask=mask_BT, **settings)
        assert torch.equal(actual, expected)


@float64_family
@pytest.mark.parametrize("form", ["sum", "mean"])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_other_forms_are_the_model_to_rounding(family, form, eps, monkeypatch):
    original = plain(family, rms_norm_eps=eps).double()
    compute_norms_in_their_dtype(monkeypatch, original)
    converted = convert(original, form=form, sublayers_per_block=3)
    error = (logits(converted) - logits(original)).norm() / logits(original).norm()
    assert error < 1e-12
    report = self_test(original, converted)
    assert not report.is_equal
    assert 0 < report.relative_error < 1e-12
    assert report.greedy_agreement == 1


NO_MEAN = {"olmo": "fixed epsilon", "olmo2": "reads the stream without a norm"}


@every_family
@pytest.mark.parametrize("form", ["sum", "mean"])
def test_in_every_family_the_other_forms_round_as_the_model_does(family, form):
    original = tiny_families.plain(family)
    if form == "mean" and family in NO_MEAN:
        with pytest.raises(ValueError, match=NO_MEAN[family]):
            convert(original, form=form)
        return
    expected_BTV = logits(original)
    actual_BTV = logits(convert(original, form=form, n_blocks=3))
    exact = copy.deepcopy(original).double()
    exact.set_experts_implementation("eager")  # there is no grouped product in float64
    exact_BTV = logits(exact)
    assert_as_good_as(actual_BTV, expected_BTV, exact_BTV, family)


def test_a_mean_without_scaled_eps_is_another_function_and_the_report_says_how_much():
    """Cases in which n^2 eps is large against the stream."""
    original = plain(rms_norm_eps=1e-2).eval()
    model: Any = convert(original, form="mean", n_blocks=6)
    unscaled = build(residual="full", trained=False, rms_norm_eps=1e-2)
    unscaled.load_state_dict(model.state_dict())
    report = self_test(original, unscaled)
    assert report.relative_error > 1e-3 > 100 * self_test(original, model).relative_error
    assert len(report.hazards) == 7
    for depth, read in enumerate(report.hazards):
        assert (read.depth, read.n_sources, read.norm_eps) == (depth, depth + 1, 1e-2)
        first_order = depth and (read.n_sources**2 - 1) * 1e-2 / (2 * read.smallest_rms**2)
        assert read.hazard == pytest.approx(first_order, rel=1e-9)
    stream_BTD = original.model.embed_tokens(tokens())
    alone = self_test(original, model, tokens()).hazards[0].smallest_rms
    assert alone == pytest.approx(stream_BTD.square().mean(-1).min().sqrt().item())


def test_the_report_is_a_table_of_the_largest_hazards():
    reports = []
    convert(plain(), n_blocks=2, report=reports.append)
    lines = str(reports[0]).splitlines()
    assert lines[0] == "residual: method centered, n_blocks 2, eps 1e-06"
    assert lines[1] == "largest difference of logits: 0.0"
    assert lines[3] == "same greedy token: 100.00% of 48 positions"
    assert [line.split()[:2] for line in lines[6:]] == [
        [str(depth), str(n)] for depth, n in enumerate([1, 2, 2, 2, 3, 3, 3])
    ]


@every_form
def test_the_model_that_was_given_stays_as_it_was_and_shares_its_weights(form):
    original = plain(tie_word_embeddings=True).train()
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    expected, kinds = logits(copy.deepcopy(original)), [type(m) for m in original.modules()]
    converted = convert(original, form=form, n_blocks=2)
    assert original.training
    assert original.config is not converted.config.text_config
    assert [type(m) for m in original.modules()] == kinds
    assert_same(original.state_dict(), before)
    own = dict(converted.named_parameters(remove_duplicate=False))
    for name, parameter in original.named_parameters(remove_duplicate=False):
        assert own[name] is parameter
    assert converted.lm_head.weight is converted.model.embed_tokens.weight
    assert not any(tensor.is_meta for tensor in [*own.values(), *converted.buffers()])
    assert torch.equal(logits(original), expected)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_experts_are_computed_as_in_the_model_that_was_given(family):
    """In bfloat16 another implementation rounds elsewhere."""
    original = tiny_families.plain(family).to(torch.bfloat16)
    for asked in ("grouped_mm", "eager"):
        original.set_experts_implementation(asked)
        converted: Any = convert(original)
        models: Any = (original, converted, change_form(converted, "sum"), revert(converted))
        for model in models:
            assert model.config._experts_implementation == asked
            experts = [part for part in model.modules() if type(part).__name__.endswith("Experts")]
            assert {part.config._experts_implementation for part in experts} == {asked}


def test_parts_that_are_frozen_in_evaluation_stay_so():
    original = plain().train()
    original.model.layers[1].mlp.eval()
    before = [part.training for part in original.modules()]
    convert(original, n_blocks=2)
    assert [part.training for part in original.modules()] == before


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_activation_checkpointing_stays_on(family):
    original = tiny_families.plain(family).train()
    assert not convert(original, n_blocks=2).is_activation_checkpointing
    original.activation_checkpointing_enable()
    converted = convert(original, n_blocks=2)
    for model in (converted, change_form(converted, "sum"), revert(converted)):
        assert model.is_activation_checkpointing
        assert model.training
    assert backward(converted).keys() > backward(revert(converted)).keys()


def test_a_model_with_fewer_places_than_the_self_test_has_tokens():
    reports = []
    convert(
        tiny_families.plain("gpt2", max_position_embeddings=9), n_blocks=2, report=reports.append
    )
    assert reports[0].n_positions == 18


@pytest.mark.parametrize("part", ["lm_head", "model.layers.1"])
def test_weights_without_values_on_one_device_are_refused(part):
    original = plain()
    original.get_submodule(part).to("meta")
    with pytest.raises(ValueError, match="weights are on cpu, meta: convert needs them on one"):
        convert(original, n_blocks=2)


def test_weights_are_copied_where_that_is_asked_for():
    original = plain(tie_word_embeddings=True)
    original.lm_head.weight.requires_grad_(False)
    converted = convert(original, n_blocks=2, copy_weights=True)
    mine = {p.data_ptr() for p in converted.parameters()}
    assert not mine & {p.data_ptr() for p in original.parameters()}
    assert converted.lm_head.weight is converted.model.embed_tokens.weight
    assert not converted.lm_head.weight.requires_grad
    assert torch.equal(logits(converted), logits(original))


@every_form
def test_a_saved_conversion_keeps_its_function(form, tmp_path):
    original = plain(rms_norm_eps=1e-2)
    converted = convert(original, form=form, n_blocks=2)
    converted.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(converted))
    assert loaded.config.scaled_norm_eps == (form == "mean")
    torch.testing.assert_close(logits(loaded), logits(original))
    if form == "mean":
        with pytest.raises(ValueError, match=r"norm_eps.*over the square"):
            AutoModelForCausalLM.from_pretrained(tmp_path, scaled_norm_eps=False)


def test_sum_and_centered_load_each_other(tmp_path):
    converted = randomise_readers(convert(plain(), n_blocks=2))
    converted.save_pretrained(tmp_path)
    loaded = AttnResForCausalLM.from_pretrained(tmp_path, residual="sum:n_blocks=2")
    assert loaded.config.residual["method"] == "sum"
    torch.testing.assert_close(logits(loaded), logits(converted))


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_every_form_is_the_same_model_where_queries_are_trained(first, second, monkeypatch):
    original = plain(rms_norm_eps=1e-2).double()
    compute_norms_in_their_dtype(monkeypatch, original)
    model: Any = randomise_readers(convert(original, form=first, sublayers_per_block=2))
    changed: Any = change_form(model, second)
    assert changed.residual.readers[2].query is model.residual.readers[2].query
    assert changed.config.scaled_norm_eps == (second == "mean")
    torch.testing.assert_close(logits(changed), logits(model), rtol=1e-11, atol=1e-11)
    assert (logits(changed) - logits(original)).abs().max() > 0.1


def test_a_mean_with_its_own_epsilon_has_no_other_form():
    with pytest.raises(ValueError, match="without scaled_norm_eps is no ordinary residual"):
        change_form(build(residual="full"), "sum")
    with pytest.raises(ValueError, match="'standard' has no form 'sum'"):
        change_form(build(residual="standard"), "sum")
    with pytest.raises(ValueError, match="no form 'middle'; there are: centered, sum, mean"):
        change_form(build(residual="full"), "middle")


@every_family
def test_revert_gives_the_plain_model_back(family):
    form = "centered" if family in NO_MEAN else "mean"
    original = tiny_families.plain(family)
    back = revert(convert(original, form=form, n_blocks=2))
    assert type(back) is type(original)
    assert back.state_dict().keys() == original.state_dict().keys()
    assert back.lm_head.weight is original.lm_head.weight
    assert torch.equal(logits(back), logits(original))


def test_revert_refuses_to_drop_what_is_learned_or_to_change_the_function():
    trained = randomise_readers(convert(plain(), n_blocks=2))
    with pytest.raises(ValueError, match=r"queries are trained, .*lossy"):
        revert(trained)
    assert torch.equal(logits(revert(trained, lossy=True)), logits(plain()))
    with pytest.raises(ValueError, match=r"without scaled_norm_eps .*lossy"):
        revert(build(residual="full", trained=False))
    assert type(revert(build(residual="standard"))) is LlamaForCausalLM


def test_a_sublayer_without_an_input_norm_needs_a_sum():
    original = tiny_families.plain("olmo2")
    reports = []
    assert torch.equal(
        logits(convert(original, n_blocks=2, report=reports.append)), logits(original)
    )
    assert reports[0].hazards == ()
    torch.testing.assert_close(logits(convert(original, form="sum")), logits(original))
    with pytest.raises(ValueError, match=r"in 'olmo2' a sublayer reads .*take 'centered'"):
        convert(original, form="mean")


def test_a_wrong_adapter_shows(monkeypatch):
    monkeypatch.setattr(
        Branch, "run", lambda self, layer, h_BTD, context: layer.mlp(h_BTD) * 1.00001
    )
    with pytest.raises(ValueError, match=r"adapter is wrong, .*: logits differ by up to \d"):
        convert(plain(), n_blocks=2)


class Subclass(LlamaForCausalLM):
    """Code of its own."""


def small_opt() -> Any:
    sizes: Any = {"num_hidden_layers": 1, "num_attention_heads": 2, "word_embed_proj_dim": 8}
    return AutoModelForCausalLM.from_config(OPTConfig(hidden_size=8, ffn_dim=8, **sizes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain().model, "a LlamaForCausalLM of transformers is needed, got a LlamaModel"),
        (lambda: Subclass(plain().config), "needed, got a Subclass: code of its own"),
        (build, "converted already; change_form"),
        (small_opt, "no adapter for the model family 'opt'; there are: llama"),
        (lambda: torch.nn.Linear(2, 2), "causal LM of transformers is needed, got a Linear"),
    ],
    ids=["no head", "a subclass", "converted", "no adapter", "no model"],
)
def test_what_is_no_plain_model_of_a_family_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        convert(make(), n_blocks=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "middle"}, "no form 'middle'; there are: centered, sum, mean"),
        ({"n_blocks": 7}, "n_blocks=7 is more than the model's 6 sublayers"),
        ({"n_blocks": 2, "layers_per_block": 1}, "exactly one of"),
        ({"residual": "centered", "n_blocks": 2}, "residual='centered' says it all"),
        ({"residual": "sum", "form": "mean"}, "residual='sum' says it all; got mean"),
        ({"residual": "block"}, "no residual method 'block'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        convert(plain(), **arguments)


def test_a_small_model_has_as_many_blocks_as_sublayers():
    small: Any = convert(plain())
    large: Any = convert(plain(num_hidden_layers=8))
    assert small.residual.layout.sizes == (1,) * 6
    assert large.residual.layout.sizes == (2,) * 8


def test_weights_of_its_own_are_not_lost_in_silence():
    original = plain()
    original.model.layers[0].register_parameter("adapter", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(
        ValueError, match=r"1 weights .* lacks, the first is model.layers.0.adapter"
    ):
        convert(original, n_blocks=2)


def test_scaled_eps_is_for_means_alone():
    model = build(residual="full", trained=False)
    with pytest.raises(ValueError, match="scaled_norm_eps is for reads of a mean, Standard"):
        AttnResForCausalLM(
            type(model.config)(
                text_config=model.config.text_config, residual="standard", scaled_norm_eps=True
            )
        )
    scaled: Any = convert(plain(), AttnResConfig(layers_per_block=1))
    found = [layer.input_layernorm.variance_epsilon for layer in scaled.model.layers]
    assert found == [1e-6, 1e-6 / 4, 1e-6 / 9]
    assert scaled.model.norm.variance_epsilon == 1e-6 / 16
