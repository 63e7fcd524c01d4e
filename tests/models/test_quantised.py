"""Weight-only quantisation of a converted model: the readers stay as they are.

torchao is not needed to use this package: where it is not installed, its cases say so.
"""

import importlib.util
from typing import Any

import pytest
import torch
from tiny_models import assert_same, plain, randomise_readers, tokens
from torch import nn
from transformers import AutoModelForCausalLM, TorchAoConfig

from attnres.models import convert
from attnres.models.taps import weights_by_depth

PARAMS: list[Any] = [pytest.param(True, id="torchao")]
if importlib.util.find_spec("torchao") is None:
    reason = "not installed: torchao"
    PARAMS = [pytest.param(True, id=reason, marks=pytest.mark.skip(reason=reason))]
where_installed = pytest.mark.parametrize("installed", PARAMS)
FORMS = ["centered", "sum", "mean"]


def trained(form: str = "centered") -> Any:
    return randomise_readers(convert(plain(), form=form, n_blocks=3)).eval()


def quantised(folder: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig  # pyright: ignore  optional

    config = TorchAoConfig(Int8WeightOnlyConfig())
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config).eval()


def largest_change(first: Any, second: Any) -> float:
    pairs = zip(weights_by_depth(first, tokens()), weights_by_depth(second, tokens()), strict=True)
    return max((one_SBT - other_SBT).abs().max().item() for one_SBT, other_SBT in pairs)


@where_installed
@pytest.mark.parametrize("form", FORMS)
def test_readers_stay_as_they_are_and_depth_weights_nearly(installed, form, tmp_path):
    model = trained(form)
    model.save_pretrained(tmp_path)
    found = quantised(tmp_path)
    assert type(found.model.layers[0].mlp.up_proj.weight) is not nn.Parameter
    assert_same(found.residual.state_dict(), model.residual.state_dict())
    assert {p.dtype for p in found.residual.parameters()} == {torch.float32}
    assert {type(p) for p in found.residual.parameters()} == {nn.Parameter}
    assert 0 < largest_change(model, found) < 0.2  # int8, and weights of 0.3 in 32 channels


@where_installed
def test_a_quantised_model_generates_and_is_saved(installed, tmp_path):
    trained().save_pretrained(tmp_path / "model")
    model = quantised(tmp_path / "model")
    settings: Any = {"max_new_tokens": 5, "do_sample": False}
    text_BT = model.generate(tokens(), **settings)
    assert torch.equal(model.generate(tokens(), use_cache=False, **settings), text_BT)
    model.save_pretrained(tmp_path / "quantised")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "quantised").eval()
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert_same(loaded.residual.state_dict(), model.residual.state_dict())
