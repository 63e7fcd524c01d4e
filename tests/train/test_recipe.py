"""Recipes refuse what cannot be run, and say all of themselves in JSON."""

import json
import math
from dataclasses import asdict, fields, replace

import pytest

from attnres.residual import AttnResConfig, StandardConfig, residual_to_json
from attnres.train.data import DataConfig
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe
from attnres.train.recipes import RECIPES, demo, demo_comparison

MODEL_COUNTS = ("dim", "n_layers", "n_heads", "n_kv_heads", "mlp_dim")
RUN_COUNTS = (
    "n_steps",
    "batch_size",
    "n_accumulations",
    "seq_len",
    "n_validation_sequences",
    "n_probe_sequences",
    "log_every",
    "validate_every",
    "probe_every",
    "save_every",
    "keep_checkpoints",
    "pipeline",
    "virtual_stages",
    "timeout_s",
)


@pytest.mark.parametrize("value", [0, -2, 1.5, True, math.nan, "3", None])
@pytest.mark.parametrize("name", MODEL_COUNTS)
def test_a_size_of_a_model_is_a_positive_integer(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a positive integer, got {value!r}$"):
        ModelConfig(**{name: value})


@pytest.mark.parametrize("value", [0, -2, 1.5, True, math.nan, "3", None])
@pytest.mark.parametrize("name", RUN_COUNTS)
def test_a_count_of_a_run_is_a_positive_integer(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a positive integer, got {value!r}$"):
        Recipe(**{"name": "run", name: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init_std": 0.0}, "init_std.* 0.0"),
        ({"init_std": math.inf}, "init_std.* inf"),
        ({"init_std": math.nan}, "init_std.* nan"),
        ({"init_std": 2.0}, "init_std.* 2.0"),
        ({"dim": 100, "n_heads": 4, "n_kv_heads": 4}, "dim=100 .*n_heads=8"),
        ({"n_heads": 4, "n_kv_heads": 3}, "n_heads=4 .*n_kv_heads=3"),
        ({"residual": AttnResConfig(n_blocks=17)}, "n_blocks=17 .* 16 sublayers"),
    ],
)
def test_a_model_that_cannot_be_is_refused_by_its_value(changes, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "''"),
        ({"name": "a/b"}, "'a/b'"),
        ({"name": ".."}, "'..'"),
        ({"name": " "}, "' '"),
        ({"name": "a\0b"}, "a.x00b"),
        ({"precision": "float16"}, "'float16'"),
        ({"data_parallel": "tp"}, "data_parallel 'tp'"),
        ({"schedule": "wsd"}, "schedule 'wsd'"),
        ({"seed": 2**64}, str(2**64)),
        ({"seed": 1.5}, "seed .* 1.5"),
        ({"seed": -1}, "seed .* -1"),
        ({"pipeline": 17, "n_accumulations": 17}, "17 chunks are more than the model's 16"),
        ({"pipeline": 4, "virtual_stages": 5}, "20 chunks are more than the model's 16 sublayers"),
        ({"pipeline": 4}, "as many micro-batches as stages, 4, or more, got 1"),
        ({"pipeline": 2, "virtual_stages": 2, "n_accumulations": 5}, "must be divisible by 2"),
        ({"pipeline": 2, "virtual_stages": 2, "schedule": "gpipe"}, "got n_virtual=2"),
        ({"pipeline": 2, "n_accumulations": 2, "compile": True}, "compile=True .* got 2"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_its_value(changes, words):
    with pytest.raises(ValueError, match=words):
        Recipe(**({"name": "run"} | changes))


def test_an_unknown_family_is_one_line_of_those_there_are():
    with pytest.raises(ValueError, match=r"^a recipe has no sizes for 'gpt9'.*llama.*$"):
        ModelConfig(family="gpt9").build(vocab_size=11, seq_len=8)
    with pytest.raises(ValueError, match=r"^a recipe has no sizes for 'gpt2'.*llama.*$"):
        ModelConfig(family="gpt2").build(vocab_size=11, seq_len=8)


def test_what_transformers_refuses_is_one_line_with_its_reason():
    config = ModelConfig(init_std=1)
    config.build(vocab_size=11, seq_len=8)
    object.__setattr__(config, "init_std", 2.0)
    with pytest.raises(ValueError, match=r"^transformers refuses the model: .*initializer_range.*"):
        config.build(vocab_size=11, seq_len=8)


def test_json_has_every_field_and_returns_as_it_was():
    for make in RECIPES.values():
        recipe = make()
        data = recipe.to_json()
        assert json.loads(json.dumps(data)) == data
        assert set(data) == {field.name for field in fields(Recipe)}
        assert data["model"]["residual"] == residual_to_json(recipe.model.residual)


OTHERS = {"family": "qwen3", "residual": AttnResConfig(n_blocks=2), "precision": "bfloat16",
          "tokenizer": "bytes", "optimizer": "muon", "schedule": "wsd", "n_kv_heads": 2,
          "n_heads": 8, "dim": 256, "vocab_size": 512, "validation_fraction": 0.1,
          "clip_norm": 2.0, "others": {"rms_norm_eps": 1e-3}, "data_parallel": "ddp"}  # fmt: skip


def other(name, value):
    if value == "auto" and name == "schedule":
        return "gpipe"  # of a pipeline
    if name in OTHERS:
        return OTHERS[name]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 4 + 0.01
        case _:
            return f"{value}x"


@pytest.mark.parametrize("part", ["", "model", "data", "optim"])
def test_json_tells_each_changed_field(part):
    base = Recipe(name="run", n_accumulations=2)  # as many as two stages need
    owner = getattr(base, part) if part else base
    found = [json.dumps(base.to_json())]
    for field in fields(owner):
        if field.name in ("model", "data", "optim"):
            continue
        changed = replace(owner, **{field.name: other(field.name, getattr(owner, field.name))})
        whole = replace(base, **{part: changed}) if part else changed
        found.append(json.dumps(whole.to_json()))
    assert len(set(found)) == len(found) == len(fields(owner)) + 1 - 3 * (not part)


def test_layouts_that_differ_in_json_alone_differ():
    full, block = (
        Recipe(name="run", model=ModelConfig(residual=residual)).to_json()["model"]["residual"]
        for residual in (AttnResConfig(), AttnResConfig(n_blocks=16))
    )
    assert full != block


def test_tokens_of_a_step():
    assert Recipe(name="run", batch_size=3, n_accumulations=5, seq_len=7).tokens_per_step == 105


def test_the_compared_runs_differ_in_name_and_residual_alone():
    recipes = demo_comparison()
    assert [recipe.name for recipe in recipes] == ["standard", "block", "full"]
    residuals = [recipe.model.residual for recipe in recipes]
    assert residuals == [StandardConfig(), AttnResConfig(n_blocks=6), AttnResConfig()]
    for recipe in recipes:
        model = replace(recipe.model, residual=StandardConfig())
        assert replace(recipe, name="standard", model=model) == demo()


def test_the_compared_runs_take_another_number_of_steps():
    assert {recipe.n_steps for recipe in demo_comparison(7)} == {7}
    with pytest.raises(ValueError, match=r"n_steps .* -1"):
        demo_comparison(-1)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_model_has_the_sizes_it_was_given(family):
    config = ModelConfig(family=family, dim=32, n_layers=3, n_heads=4, n_kv_heads=2, mlp_dim=48,
                         tie_embeddings=False, residual=AttnResConfig(n_blocks=2))  # fmt: skip
    model = config.build(vocab_size=61, seq_len=16)
    assert (len(model.model.layers), model.config.text_config.head_dim) == (3, 8)
    assert model.model.embed_tokens.weight.shape == (61, 32)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert model.model.layers[0].mlp.up_proj.weight.shape == (48, 32)
    assert model.model.layers[0].self_attn.k_proj.weight.shape == (16, 32)


def test_defaults_are_frozen():
    assert asdict(Recipe(name="run"))["data"] == asdict(DataConfig())
    with pytest.raises(AttributeError):
        OptimConfig().lr = 1.0  # pyright: ignore[reportAttributeAccessIssue]
