"""Where a model lies, and what is made of it: device maps and `torch.export`."""

import copy
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from tiny_models import RESIDUALS, build, plain, randomise_readers, tokens

from attnres.models import AttnResForCausalLM, convert

OURS: Any = AttnResForCausalLM
PARTS = ["residual", "lm_head", "model.embed_tokens", "model.norm", "model.rotary_emb"]


@pytest.mark.parametrize("residual", RESIDUALS)
def test_layers_may_be_put_elsewhere_by_a_device_map(residual, tmp_path):
    model = build(residual=residual).eval()
    model.save_pretrained(tmp_path / "saved")
    places = dict.fromkeys([*PARTS, "model.layers.0", "model.layers.2"], "cpu")
    loaded = OURS.from_pretrained(
        tmp_path / "saved",
        device_map={**places, "model.layers.1": "disk"},
        offload_folder=tmp_path / "disk",
    )
    assert loaded.model.layers[1].mlp.up_proj.weight.is_meta
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_readers_on_another_device_than_the_sources_are_refused_by_name():
    model = build()
    model.residual.to("meta")
    with pytest.raises(ValueError, match="query_D is on meta, the sources on cpu"):
        model(tokens())


@pytest.mark.parametrize("residual", ["standard", "block"])
def test_an_exported_model_is_the_model(residual):
    model = build(residual=residual).eval()
    exported = torch.export.export(model, (tokens(),), {"use_cache": False}).module()
    logits = exported(tokens(), use_cache=False).logits
    assert torch.equal(logits, model(tokens()).logits)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["centered", "sum", "mean"])
def test_an_exported_conversion_is_saved_and_takes_any_batch_and_length(form, tmp_path):
    model = randomise_readers(convert(plain(), form=form, n_blocks=3)).eval()
    sizes = {0: torch.export.Dim("B", max=8), 1: torch.export.Dim("T", min=2, max=64)}
    program = torch.export.export(
        model,
        (tokens(),),
        {"use_cache": False},
        dynamic_shapes={"input_ids": sizes, "use_cache": None},
    )
    torch.export.save(program, tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2").module()
    exact = copy.deepcopy(model).double()
    for batch, length in ((7, 37), (1, 2)):
        tokens_BT = tokens(batch, length)
        with torch.no_grad():
            logits_BTV = exported(tokens_BT, use_cache=False).logits
            plain_BTV, exact_BTV = model(tokens_BT).logits, exact(tokens_BT).logits
        assert_as_good_as(logits_BTV, plain_BTV, exact_BTV, "exported logits")


def test_an_exported_conversion_is_the_original_bit_for_bit():
    original = plain().eval()
    model: Any = convert(original, n_blocks=3)
    exported = torch.export.export(model, (tokens(),), {"use_cache": False}).module()
    logits_BTV = exported(tokens(), use_cache=False).logits
    assert torch.equal(logits_BTV, original(tokens()).logits)
