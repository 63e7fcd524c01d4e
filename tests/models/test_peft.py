"""LoRA by PEFT: no pattern catches a reader; its copies, where they are asked for, are read by."""

from typing import Any

import pytest
import tiny_families
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_models import assert_same, build, gradients, plain, tokens

from attnres.models import convert

FAMILIES = ["llama", "gpt2", "gpt_neox", "mixtral", "kimi_linear", "cohere"]


def adapted(model: Any, **settings: Any) -> Any:
    """Adapters that are not zero at the start."""
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **settings))


def train(model: Any, n_steps: int) -> list[float]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = model(tokens(), labels=tokens()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pattern", ["all-linear", r".*(mlp|attn|attention).*(proj|dense).*"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
def test_a_pattern_catches_no_reader_and_a_merged_model_is_the_adapted(family, pattern):
    if family == "gpt2" and pattern != "all-linear":
        pattern = r".*(mlp|attn).*c_proj"
    model = tiny_families.build(family).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    peft = adapted(model, target_modules=pattern)
    peft(tokens(), labels=tokens()).loss.backward()
    found = gradients(peft)
    assert found
    assert all("lora_" in name and "residual" not in name for name in found)
    expected = peft(tokens()).logits
    merged = peft.merge_and_unload()
    error = (merged(tokens()).logits - expected).abs().max()
    assert error <= 1e-4 * expected.abs().max()
    assert before.keys() == merged.state_dict().keys()


def test_readers_stay_as_they_are_to_the_bit_under_checkpointing():
    peft = adapted(build().train(), target_modules=["q_proj", "v_proj"])
    peft.enable_input_require_grads()
    peft.base_model.model.activation_checkpointing_enable()
    losses = train(peft, n_steps=20)
    assert losses[-1] < losses[0]
    expected = build().residual.state_dict()
    assert_same(peft.base_model.model.residual.state_dict(), expected)


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_readers_are_trained_and_saved_where_they_are_asked_for(tmp_path):
    settings = {"target_modules": ["q_proj"], "modules_to_save": ["residual"]}
    peft = adapted(build().train(), **settings)
    expected = build().residual.state_dict()
    train(peft, n_steps=2)
    residual = peft.base_model.model.residual
    assert_same(residual.original_module.state_dict(), expected)
    for name, trained in residual.modules_to_save["default"].state_dict().items():
        assert not torch.equal(trained, expected[name]), name
    logits = peft.eval()(tokens()).logits
    with peft.disable_adapter():
        assert torch.equal(peft(tokens()).logits, build().eval()(tokens()).logits)
    peft.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(), tmp_path).eval()
    assert torch.equal(loaded(tokens()).logits, logits)


def test_another_residual_joins_the_sublayers_in_place_of_the_first():
    model, other = build(), build(residual="full")
    expected = build(residual="full")(tokens()).logits
    model.residual = other.residual
    assert torch.equal(model(tokens()).logits, expected)
    model.residual = build().residual
    assert torch.equal(model(tokens()).logits, build()(tokens()).logits)


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("queries", [False, True], ids=["queries frozen", "queries trained"])
def test_a_converted_model_is_adapted_and_merged(queries):
    original = plain()
    model: Any = convert(original, n_blocks=3, copy_weights=True).train()
    model.activation_checkpointing_enable()
    settings: Any = {"modules_to_save": ["residual"]} if queries else {}
    peft: Any = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **settings)
    )
    peft.enable_input_require_grads()
    frozen = {name: p.clone() for name, p in peft.named_parameters() if not p.requires_grad}
    losses = train(peft, n_steps=20)
    assert losses[-1] < losses[0]
    assert losses[0] == pytest.approx(original(tokens(), labels=tokens()).loss.item())
    assert_same({name: p for name, p in peft.named_parameters() if name in frozen}, frozen)
    expected_BTV = peft.eval()(tokens()).logits
    merged = peft.merge_and_unload()
    torch.testing.assert_close(merged(tokens()).logits, expected_BTV, rtol=1e-4, atol=1e-4)
    assert merged.residual.is_untrained() == (not queries)
    assert merged.state_dict().keys() == convert(original, n_blocks=3).state_dict().keys()
