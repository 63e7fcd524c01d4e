"""Where a model lies, and what is made of it: device maps and `torch.export`."""

from typing import Any

import pytest
import torch
from tiny_models import RESIDUALS, build, tokens

from attnres.models import AttnResForCausalLM

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
