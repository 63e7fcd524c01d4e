"""Recipes of the Kimi Linear family have the sizes that are published."""

from dataclasses import replace

import pytest
import torch

from attnres.cli.costs import cost
from attnres.cli.layouts import layout
from attnres.models.sizes import sizes_of
from attnres.residual import AttnResConfig
from attnres.train.kimi import SCALING, VOCAB_SIZE, kimi_linear_48b
from attnres.train.recipe import ModelConfig
from attnres.train.recipes import RECIPES


def sizes(name):
    recipe = RECIPES[name]()
    return sizes_of(recipe.model.text_config(recipe.data.vocab_size, recipe.seq_len))


@pytest.mark.parametrize("size", SCALING)
def test_a_scaling_size_has_the_active_parameters_of_the_paper(size):
    found = sizes(f"kimi_{size}")
    active = found.n_active_weights - VOCAB_SIZE * found.dim  # without the head
    assert round(active / 1e6) == int(size.removesuffix("m"))
    recipe = RECIPES[f"kimi_{size}"]()
    assert recipe.n_steps * recipe.tokens_per_step / 1e9 == pytest.approx(SCALING[size][-1], 1e-4)
    n_blocks = len(recipe.model.residual.describe(found.n_sublayers)["layout"]["sizes"])
    assert 6 <= n_blocks <= 9  # "about 8"


def test_the_main_run_is_that_of_the_paper():
    recipe, found = kimi_linear_48b(), sizes("kimi_linear_48b")
    assert found.n_params == 49_122_675_072
    assert found.n_active_weights / 1e9 == pytest.approx(3.107, abs=5e-4)
    assert recipe.model.residual.describe(54)["layout"]["sizes"] == [6] * 9
    assert recipe.tokens_per_step == 2**23
    assert recipe.n_steps * recipe.tokens_per_step == pytest.approx(1e12, 1e-5)


def test_the_main_model_is_built_without_values():
    recipe = kimi_linear_48b()
    with torch.device("meta"):
        model = recipe.model.build(VOCAB_SIZE, recipe.seq_len)
    added = sum(parameter.numel() for parameter in model.residual.parameters())
    # each of 54 readers; there is none before the first sublayer, which has one source
    assert added == 253_440 - 2 * 2304
    assert sum(parameter.numel() for parameter in model.parameters()) - added == 49_122_675_072


@pytest.mark.parametrize(
    ("name", "millions"), [("kimi_laptop", (1.5, 2.5)), ("kimi_laptop_20m", (15, 25))]
)
def test_a_laptop_has_models_of_the_same_family(name, millions):
    least, most = millions
    assert least < sizes(name).n_params / 1e6 < most
    assert sizes(name).n_sublayers >= 16


def test_other_settings_are_of_the_family_alone():
    base = RECIPES["kimi_laptop"]().model
    model = replace(base, others={**base.others, "routed_scaling_factor": 1.0})
    assert model.text_config(300, 16).routed_scaling_factor == 1.0
    llama = ModelConfig(others={"rms_norm_eps": 1e-3}, residual=AttnResConfig())
    assert llama.text_config(300, 16).rms_norm_eps == 1e-3
    with pytest.raises(ValueError, match="a kimi_linear config has no 'n_experts'"):
        replace(model, others={"n_experts": 3}).text_config(300, 16)


def test_the_commands_know_the_main_recipe(capsys):
    layout(["kimi_linear_48b"])
    assert "54 sublayers in 9 blocks" in capsys.readouterr().out
    layout(["kimi_k3"])
    assert "186 sublayers in 8 blocks" in capsys.readouterr().out
    cost(["kimi_linear_48b", "--gpus", "64", "256", "--stages", "4", "--virtual", "2"])
    printed = capsys.readouterr().out
    assert "49,122,675,072" in printed
    assert "of these, multiplied with a token 3,106,751,104" in " ".join(printed.split())
    assert "256 GPUs" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kimi_k9"], "no recipe 'kimi_k9'; there are: demo"),
        (["demo"], "the residual of demo has no blocks"),
        (["kimi_k3", "--layers", "3"], "kimi_k3 has a layout of its own"),
        ([], "layers must be positive, got 0"),
    ],
)
def test_a_layout_that_is_not_there_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        layout(arguments)
