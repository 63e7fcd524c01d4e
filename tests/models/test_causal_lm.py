"""What the model computes: the plain model, and an independently written loop over depth."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tiny_models import (
    FAMILIES,
    VOCAB_SIZE,
    assert_same,
    build,
    compute_norms_in_their_dtype,
    gradients,
    plain,
    tokens,
)
from torch import Tensor
from transformers import DynamicCache

families = pytest.mark.parametrize("family", FAMILIES)


def forward_backward(model: Any, tokens_BT: Tensor, **arguments: Any) -> dict[str, Tensor]:
    model.zero_grad()
    out = model(tokens_BT, labels=tokens_BT, **arguments)
    out.loss.backward()
    return {"logits": out.logits, "loss": out.loss, **gradients(model)}


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_standard_residual_is_the_plain_model(family, dtype, autocast, tied):
    expected_model = plain(family, tie_word_embeddings=tied).to(dtype)
    model = build(family, "standard", tie_word_embeddings=tied).to(dtype)
    model.load_state_dict(expected_model.state_dict())
    context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with context:
        actual = forward_backward(model, tokens())
        expected = forward_backward(expected_model, tokens())
    assert_same(actual, expected)


@families
@pytest.mark.parametrize("residual", ["full", "block"])
def test_a_plain_checkpoint_lacks_the_residual_alone(family, residual):
    model = build(family, residual)
    missing, unexpected = model.load_state_dict(plain(family).state_dict(), strict=False)
    assert unexpected == []
    assert missing == [f"residual.{name}" for name in model.residual.state_dict()]
    assert len(missing) == 2 * 6


def attend_over_depth(sources: list[Tensor], reader: Any) -> Tensor:
    value_SBTD = torch.stack(sources)
    rstd_SBT = (value_SBTD.square().mean(-1) + 1e-6).rsqrt()
    logit_SBT = (value_SBTD * reader.query * reader.key_weight).sum(-1) * rstd_SBT
    return (logit_SBT.softmax(0).unsqueeze(-1) * value_SBTD).sum(0)


def loop_over_depth(model: Any, tokens_BT: Tensor, closing: set[int]) -> Tensor:
    """Logits by the definition; `closing` are the sublayers after which a block closes."""
    base = model.model
    hidden_BTD = base.embed_tokens(tokens_BT)
    position_T = torch.arange(tokens_BT.shape[1])
    distance_TT = position_T[:, None] - position_T
    window = getattr(base.config, "sliding_window", None) or len(position_T)
    context = {
        "attention_mask": ((distance_TT >= 0) & (distance_TT < window))[None, None],
        "position_embeddings": base.rotary_emb(hidden_BTD, position_T[None]),
    }
    blocks, unfinished = [hidden_BTD], []
    for depth in range(2 * len(base.layers)):
        layer = base.layers[depth // 2]
        sources = [*blocks, sum(unfinished)] if unfinished else blocks
        h_BTD = attend_over_depth(sources, model.residual.readers[depth]) if depth else hidden_BTD
        if depth % 2 == 0:
            out_BTD = layer.self_attn(layer.input_layernorm(h_BTD), **context)[0]
        else:
            out_BTD = layer.mlp(layer.post_attention_layernorm(h_BTD))
        unfinished.append(out_BTD)
        if depth in closing:
            blocks, unfinished = [*blocks, sum(unfinished)], []
    sources = [*blocks, sum(unfinished)] if unfinished else blocks
    h_BTD = attend_over_depth(sources, model.residual.readers[-1])
    rstd_BT1 = (h_BTD.square().mean(-1, keepdim=True) + base.config.rms_norm_eps).rsqrt()
    return model.lm_head(base.norm.weight * h_BTD * rstd_BT1)


@families
@pytest.mark.parametrize(("residual", "closing"), [("full", {0, 1, 2, 3, 4, 5}), ("block", {2, 5})])
def test_attn_res_is_its_definition(family, residual, closing, monkeypatch):
    model = build(family, residual).double()
    compute_norms_in_their_dtype(monkeypatch, model)
    actual = forward_backward(model, tokens())

    model.zero_grad()
    logits_BTV = loop_over_depth(model, tokens(), closing)
    loss = torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten()
    )
    loss.backward()
    expected = {"logits": logits_BTV, **gradients(model)}
    assert torch.allclose(actual.pop("loss").double(), loss, rtol=1e-6)  # theirs is in float32
    assert actual.keys() == expected.keys()
    torch.testing.assert_close(actual["logits"], logits_BTV, rtol=1e-12, atol=1e-12)


@families
@pytest.mark.parametrize(("residual", "closing"), [("full", {0, 1, 2, 3, 4, 5}), ("block", {2, 5})])
def test_attn_res_has_the_gradients_of_its_definition(family, residual, closing, monkeypatch):
    model = build(family, residual).double()
    compute_norms_in_their_dtype(monkeypatch, model)
    model(tokens()).logits.square().mean().backward()
    actual = gradients(model)

    model.zero_grad()
    loop_over_depth(model, tokens(), closing).square().mean().backward()
    expected = gradients(model)
    assert actual.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max()
        assert scale > 0, name
        assert (actual[name] - gradient).abs().max() <= 1e-12 * max(scale, 1), name


@pytest.mark.parametrize("residual", ["full", "block"])
def test_zero_queries_are_the_baseline_up_to_the_epsilon_of_each_norm(residual, monkeypatch):
    small: dict[str, Any] = {"initializer_range": 0.02, "rms_norm_eps": 1e-5}
    baseline = plain(**small).double()
    model = build(residual=residual, trained=False, **small).double()
    model.load_state_dict(baseline.state_dict(), strict=False)
    compute_norms_in_their_dtype(monkeypatch, model)
    expected = baseline(tokens()).logits

    assert not torch.allclose(model(tokens()).logits, expected, rtol=1e-3)
    layout: Any = model.residual.layout
    norms = [n for x in model.model.layers for n in (x.input_layernorm, x.post_attention_layernorm)]
    for depth, norm in enumerate([*norms, model.model.norm]):
        norm.variance_epsilon = 1e-5 / layout.n_sources(depth) ** 2
    torch.testing.assert_close(model(tokens()).logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("residual", ["full", "block"])
@pytest.mark.parametrize(
    ("embedding_std", "eps", "least", "most"),
    [(1.0, 1e-6, 1e-6, 1e-4), (0.02, 1e-5, 1e-3, 1.0)],
    ids=["unit", "small"],
)
def test_one_epsilon_everywhere_moves_small_streams_most(
    residual, embedding_std, eps, least, most, monkeypatch
):
    settings: dict[str, Any] = {"initializer_range": 0.02, "rms_norm_eps": eps}
    baseline = plain(**settings).double()
    torch.nn.init.normal_(baseline.get_input_embeddings().weight, std=embedding_std)
    model = build(residual=residual, trained=False, **settings).double()
    model.load_state_dict(baseline.state_dict(), strict=False)
    compute_norms_in_their_dtype(monkeypatch, model)
    expected = baseline(tokens()).logits
    deviation = (model(tokens()).logits - expected).abs().max() / expected.abs().max()
    assert least < deviation < most


def test_the_output_read_comes_before_the_final_norm_and_is_trained():
    model = build(residual="full", trained=False)
    loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    output_reader: Any = model.residual.readers[-1]
    assert output_reader.query.grad.abs().max() > 0

    written = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda *call: written.append(call[-1][0]))
        layer.mlp.register_forward_hook(lambda *call: written.append(call[-1]))
    model(tokens())
    chosen_BTD = written[3]
    direction_D = chosen_BTD[0, 0] / chosen_BTD[0, 0].norm()
    output_reader.query.data.copy_(1e4 * direction_D)
    written.clear()
    logits_V = model(tokens()).logits[0, 0]
    plain_norm = torch.nn.functional.rms_norm(chosen_BTD[0, 0], (32,), eps=1e-6)
    torch.testing.assert_close(logits_V, model.lm_head(plain_norm), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residual", ["standard", "full", "block"])
def test_a_later_token_changes_nothing_before_it(residual):
    model = build(residual=residual)
    changed = tokens()
    changed[:, 6] = (changed[:, 6] + 1) % VOCAB_SIZE
    before, after = model(tokens()).logits, model(changed).logits
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6], after[:, 6])


def test_logits_to_keep_keeps_the_last_or_the_named_positions():
    model, logits = build(), build()(tokens()).logits
    torch.testing.assert_close(model(tokens(), logits_to_keep=3).logits, logits[:, -3:])
    named = torch.tensor([1, 4])
    torch.testing.assert_close(model(tokens(), logits_to_keep=named).logits, logits[:, named])
    chosen = torch.zeros(2, 11, dtype=torch.bool)
    chosen[0, 2] = chosen[1, 5] = chosen[1, 6] = True
    torch.testing.assert_close(model(tokens(), logits_to_keep=chosen).logits, logits[chosen])


def test_embeddings_may_be_given_in_the_place_of_tokens():
    model = build()
    embeds_BTD = model.get_input_embeddings()(tokens())
    assert torch.equal(model(inputs_embeds=embeds_BTD).logits, model(tokens()).logits)
    with pytest.raises(ValueError, match="exactly one"):
        model(tokens(), inputs_embeds=embeds_BTD)


@pytest.mark.parametrize("n_items", [None, 7, torch.tensor(7)])
def test_the_loss_leaves_out_ignored_labels_and_counts_the_items_of_the_whole_batch(n_items):
    model = build()
    labels_BT = tokens()
    labels_BT[:, 3:5] = -100
    out = model(tokens(), labels=labels_BT, num_items_in_batch=n_items)
    losses = torch.nn.functional.cross_entropy(
        out.logits[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), reduction="none"
    )
    expected = losses.sum() / (n_items or 2 * (10 - 2))
    torch.testing.assert_close(out.loss, expected)


def test_attentions_are_given_where_they_are_asked_for():
    model = build(attn_implementation="eager")
    attentions = model(tokens(), output_attentions=True).attentions
    assert [a.shape for a in attentions] == [(2, 4, 11, 11)] * 3
    assert model(tokens()).attentions is None
    model.config.output_attentions = True
    assert len(model(tokens()).attentions) == 3


def test_a_tuple_is_given_where_it_is_asked_for():
    model = build()
    loss, logits, *_ = model(tokens(), labels=tokens(), return_dict=False)
    assert torch.equal(logits, model(tokens()).logits)
    assert loss.dim() == 0


def test_the_former_name_of_the_cache_is_refused():
    with pytest.raises(ValueError, match="is called cache, not past_key_values"):
        build()(tokens(), past_key_values=DynamicCache())
