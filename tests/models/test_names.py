"""Tensors and blocks under the names of other projects, both ways, and what is refused."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import assert_same, build, config, plain, randomise_readers, tokens

from attnres.models import (
    AttnResCausalLMConfig,
    AttnResForCausalLM,
    export_named,
    load_named,
    residual_from_named,
    residual_to_named,
)
from attnres.residual import AttnResConfig, StandardConfig, TwoPhaseConfig

LAYERS = 3
NAMES = ["kimi_k3", "fla", "torchtitan"]
READERS = {
    "kimi_k3": (
        "language_model.model.layers.{}.self_attention_res",
        "language_model.model.layers.{}.mlp_res",
        "language_model.model.output_attn_res",
    ),
    "fla": ("model.layers.{}.attn_res", "model.layers.{}.mlp_res", "model.res"),
    "torchtitan": ("layers.{}.attention_res", "layers.{}.ffn_res", "output_res"),
}
OTHERS = {
    "kimi_k3": {
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.1.self_attn.q_proj.weight",
        "language_model.model.layers.2.post_attention_layernorm.weight",
        "language_model.lm_head.weight",
    },
    "fla": {
        "model.embeddings.weight",
        "model.layers.0.attn.q_proj.weight",
        "model.layers.1.attn_norm.weight",
        "model.layers.2.mlp_norm.weight",
        "model.layers.2.mlp.gate_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    },
    "torchtitan": {
        "tok_embeddings.weight",
        "layers.0.attention_norm.weight",
        "layers.1.ffn_norm.weight",
        "layers.2.feed_forward.w1.weight",
        "norm.weight",
        "lm_head.weight",
    },
}


def in_layers(residual: str = "attn_res", *, trained: bool = True, **changes: Any) -> Any:
    """Three layers, two and one to a block; the readers have the epsilon of the norms."""
    settings = {"method": residual, "layers_per_block": 2, "eps": 1e-6}
    torch.manual_seed(int(trained))
    model = AttnResForCausalLM(
        AttnResCausalLMConfig(text_config=config(**changes).text_config, residual=settings)
    )
    return randomise_readers(model) if trained else model


def their_readers(names: str) -> dict[str, Any]:
    """Every reader's name without its end, in order of depth, with its shape."""
    attention, mlp, output = READERS[names]
    stems = [stem.format(layer) for layer in range(LAYERS) for stem in (attention, mlp)]
    shapes: dict[str, Any] = {f"{stem}_proj.weight": [1, 32] for stem in [*stems, output]}
    return shapes | {f"{stem}_norm.weight": [32] for stem in [*stems, output]}


def assert_refused(match: str, call: Any, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(ValueError, match=match) as error:
        call(*arguments, **keywords)
    assert "\n" not in str(error.value)


def assert_load_refused(match: str, model: Any, tensors: Any, names: str, **keywords: Any) -> None:
    """Refused, and nothing is changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert_refused(match, load_named, model, tensors, names, **keywords)
    assert_same(model.state_dict(), before)


@pytest.mark.parametrize("names", NAMES)
def test_an_export_has_the_other_projects_names_and_shapes(names):
    model = in_layers()
    tensors = export_named(model, names)
    expected = their_readers(names)
    if names == "torchtitan":  # it has no reader before the first sublayer
        expected.pop("layers.0.attention_res_proj.weight")
        expected.pop("layers.0.attention_res_norm.weight")
    found = {name: list(tensor.shape) for name, tensor in tensors.items() if "_res_" in name}
    found |= {name: list(x.shape) for name, x in tensors.items() if ".res_" in name}
    assert found == expected
    assert OTHERS[names] <= tensors.keys()
    assert len(tensors) == len(model.state_dict()) + 2 * (names != "torchtitan")


@pytest.mark.parametrize("names", NAMES)
def test_each_reader_goes_to_its_place(names):
    model, (attention, mlp, output) = in_layers(), READERS[names]
    tensors, ours = export_named(model, names), model.state_dict()
    for depth, stem in enumerate([attention, mlp] * LAYERS + [output]):
        if depth > 0:
            reader, theirs = f"residual.readers.{depth}", stem.format(depth // 2)
            assert torch.equal(tensors[f"{theirs}_proj.weight"][0], ours[f"{reader}.query"])
            assert torch.equal(tensors[f"{theirs}_norm.weight"], ours[f"{reader}.key_weight"])


@pytest.mark.parametrize("names", ["kimi_k3", "fla"])
def test_the_first_reader_that_is_there_and_not_here_is_written_and_left_out(names):
    tensors = export_named(in_layers(), names)
    query, key_weight = (f"{READERS[names][0].format(0)}_{end}.weight" for end in ("proj", "norm"))
    assert torch.equal(tensors[query], torch.zeros(1, 32))
    assert torch.equal(tensors[key_weight], torch.ones(32))
    tensors[query] = torch.randn(1, 32)  # whatever it is, one source has weight one
    model = in_layers(trained=False)
    report = load_named(model, tensors, names)
    assert report.unread == tuple(sorted([query, key_weight]))
    assert_same(model.state_dict(), in_layers().state_dict())


@pytest.mark.parametrize("names", [*NAMES, "ours"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_lossless_and_so_is_the_other_way(names, dtype):
    source, model = in_layers().to(dtype), in_layers(trained=False).to(dtype)
    tensors = {name: tensor.clone() for name, tensor in export_named(source, names).items()}
    report = load_named(model, tensors, names)
    assert report.loaded == tuple(sorted(source.state_dict()))
    assert report.missing == report.extra == ()
    assert_same(model.state_dict(), source.state_dict())
    assert_same(export_named(model, names), tensors)
    assert torch.equal(model(tokens()).logits, source(tokens()).logits)


def test_a_checkpoint_of_text_alone_lacks_the_prefix_of_kimi_k3():
    source, model = in_layers(), in_layers(trained=False)
    tensors = export_named(source, "kimi_k3")
    load_named(model, {n.removeprefix("language_model."): x for n, x in tensors.items()}, "kimi_k3")
    assert_same(model.state_dict(), source.state_dict())


def test_an_older_torchtitan_has_a_first_reader_too():
    tensors = export_named(in_layers(), "torchtitan")
    tensors["layers.0.attention_res_proj.weight"] = torch.zeros(1, 32)
    report = load_named(in_layers(trained=False), tensors, "torchtitan")
    assert report.unread == ("layers.0.attention_res_proj.weight",)


def test_tied_weights_are_not_missing_under_their_second_name():
    source = in_layers(tie_word_embeddings=True)
    tensors = export_named(source, "fla")
    del tensors["lm_head.weight"]
    model = in_layers(tie_word_embeddings=True, trained=False)
    assert load_named(model, tensors, "fla").missing == ()
    assert_same(model.state_dict(), source.state_dict())


def test_a_plain_checkpoint_lacks_the_readers_alone_and_they_keep_their_start():
    model, source = build(trained=False), plain(num_hidden_layers=3)
    report = load_named(model, source.state_dict())
    readers = dict(model.residual.named_parameters())
    assert report.missing == tuple(sorted(f"residual.{name}" for name in readers))
    assert report.extra == report.unread == ()
    assert len(report.loaded) == len(source.state_dict())
    for name, parameter in readers.items():
        assert parameter.unique().tolist() == [0.0 if name.endswith("query") else 1.0]
    assert f"{len(report.loaded)} tensors loaded" in str(report)
    assert "12 of these belong to readers" in str(report)


def test_missing_and_extra_are_counted_and_shown():
    tensors = export_named(in_layers(), "fla")
    lost = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(LAYERS)]
    for name in [*lost, "model.norm.weight"]:
        del tensors[name]
    tensors["model.layers.0.attn.rotary.inv_freq"] = torch.ones(4)
    report = load_named(in_layers(trained=False), tensors, "fla")
    assert report.missing == (*lost, "model.norm.weight")
    assert report.extra == ("model.layers.0.attn.rotary.inv_freq",)
    assert str(report).splitlines() == [
        "38 tensors loaded by the names of fla. Missing, so that they keep their values: 4 "
        "(model.layers.0.mlp.up_proj.weight, model.layers.1.mlp.up_proj.weight, "
        "model.layers.2.mlp.up_proj.weight, ...); 0 of these belong to readers. Extra: 1 "
        "(model.layers.0.attn.rotary.inv_freq). Left out, since the first read has one source: 2 "
        "(model.layers.0.attn_res_norm.weight, model.layers.0.attn_res_proj.weight)."
    ]


@pytest.mark.parametrize("names", ["ours", *NAMES])
@pytest.mark.parametrize("prefix", ["module.", ""])
def test_zero_overlap_raises(names, prefix):
    source = plain().state_dict() if prefix else {}
    tensors = {prefix + name: tensor for name, tensor in source.items()}
    first = f"the checkpoint .*{min(tensors)}$" if tensors else "the checkpoint none"
    match = f"not one of {len(tensors)} tensors fits by the names of {names}.*{first}"
    assert_load_refused(match, in_layers(), tensors, names)


def test_a_wrong_shape_raises():
    tensors = export_named(in_layers(), "kimi_k3")
    tensors["language_model.model.layers.1.mlp_res_proj.weight"] = torch.zeros(2, 32)
    match = r"residual.readers.3.query has shape \[32\], in the checkpoint \[2, 32\]"
    assert_load_refused(match, in_layers(), tensors, "kimi_k3")
    tensors["language_model.model.layers.1.mlp_res_proj.weight"] = torch.zeros(1, 32)
    tensors["language_model.model.layers.1.mlp_res_norm.weight"] = torch.ones(1, 32)
    assert_load_refused("readers.3.key_weight has shape", in_layers(), tensors, "kimi_k3")


@pytest.mark.parametrize("names", ["ours", *NAMES])
@pytest.mark.parametrize("n_layers", [2, 4])
def test_more_or_fewer_readers_than_the_model_has_raise(names, n_layers):
    tensors = export_named(in_layers(num_hidden_layers=n_layers), names)
    match = f"the checkpoint has {4 * n_layers} tensors of readers, the model 12; only one"
    assert_load_refused(match, in_layers(), tensors, names)


def test_readers_for_a_model_without_any_raise():
    tensors = export_named(in_layers(), "fla")
    match = "the checkpoint has 12 tensors of readers, the model 0"
    assert_load_refused(match, build(residual="standard"), tensors, "fla")


@pytest.mark.parametrize("names", ["ours", *NAMES])
@pytest.mark.parametrize("others", ["ours", *NAMES])
def test_readers_by_the_names_of_another_project_raise(names, others):
    if names != others:
        tensors = export_named(in_layers(), others)
        match = f"the readers are called as in {others}, not as in {names}"
        assert_load_refused(match, in_layers(), tensors, names)


def test_a_layout_without_words_there_raises_on_the_way_in_too():
    tensors = export_named(in_layers(), "kimi_k3")
    match = "counts layers of two sublayers, a block here has 1"
    assert_load_refused(match, build(residual="full"), tensors, "kimi_k3")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attn_res_block_size": 1}, r"'sizes': \[2, 2, 2\]"),
        ({"rms_norm_eps": 1e-5}, "'eps': 1e-05"),
    ],
    ids=["layout", "eps"],
)
def test_a_config_of_another_function_raises(changes, match):
    tensors = export_named(in_layers(), "kimi_k3")
    given = {"attn_res_block_size": 2, "rms_norm_eps": 1e-6}
    load_named(in_layers("two_phase"), tensors, "kimi_k3", config=given)
    model = in_layers()
    assert_load_refused(match, model, tensors, "kimi_k3", config={**given, **changes})
    ours = build(residual="full").config.to_dict()
    assert_load_refused("was made with", model, model.state_dict(), "ours", config=ours)


def test_unknown_names_raise():
    assert_refused("no names 'k3'; there are: ours, kimi_k3", load_named, in_layers(), {}, "k3")
    assert_refused("no names 'k3'", export_named, in_layers(), "k3")


def test_a_model_without_values_raises():
    with torch.device("meta"):
        model = in_layers(trained=False)
    assert_refused("meta device", load_named, model, {}, "fla")


@pytest.mark.parametrize(
    ("names", "theirs", "ours"),
    [
        ("kimi_k3", {"attn_res_block_size": 12}, {"layers_per_block": 12}),
        ("kimi_k3", {"attn_res_block_size": 1}, {"layers_per_block": 1}),
        ("fla", {"attnres_block_size": 1}, {"sublayers_per_block": 1}),
        ("fla", {"attnres_block_size": 24}, {"sublayers_per_block": 24}),
        ("torchtitan", {"attn_res_block_size": 12}, {"layers_per_block": 12}),
    ],
)
def test_a_block_size_there_is_one_with_a_unit_here_and_back(names, theirs, ours):
    key = {"kimi_k3": "rms_norm_eps", "fla": "norm_eps", "torchtitan": "eps"}[names]
    theirs = {**theirs, key: 1e-5}
    expected = AttnResConfig(**ours, eps=1e-5)
    assert residual_from_named(theirs, names) == expected
    assert residual_from_named({"text_config": theirs, "model_type": "x"}, names) == expected
    text = config(num_hidden_layers=93, rms_norm_eps=1e-5).text_config
    for residual in (expected, TwoPhaseConfig(**ours, eps=1e-5)):
        made = AttnResCausalLMConfig(text_config=text, residual=residual)
        assert residual_to_named(made, names) == theirs


@pytest.mark.parametrize("names", NAMES)
def test_no_block_size_is_the_standard_residual(names):
    assert residual_from_named({"hidden_size": 32}, names) == StandardConfig()
    (size,) = residual_to_named(config(residual="standard"), names).values()
    assert size is None
    model = build(residual="standard")
    tensors = export_named(model, names)
    assert len(tensors) == len(model.state_dict())
    load_named(model, tensors, names)


@pytest.mark.parametrize(
    ("names", "theirs", "match"),
    [
        ("fla", {"attnres_block_size": 3, "norm_eps": 1e-6}, "1 or even .in sublayers., got 3"),
        (
            "fla",
            {"attnres_block_size": 0, "norm_eps": 1e-6},
            "attnres_block_size must be a positive",
        ),
        (
            "kimi_k3",
            {"attn_res_block_size": 2.0, "rms_norm_eps": 1e-6},
            "attn_res_block_size must be",
        ),
        ("kimi_k3", {"attn_res_block_size": 2}, "the config has no rms_norm_eps"),
        ("kimi_k3", {"attnres_block_size": 2}, "has attn_res_block_size, this one has attnres_b"),
        ("fla", {"attn_res_block_size": 2}, "has attnres_block_size, this one has attn_res_b"),
        ("kimi_k3", {"n_layers_per_attn_res_block": 6}, "Inkling-2 reads over depth in another"),
        ("inkling2", {}, "Inkling-2 reads over depth in another"),
        ("ours", {}, "no names 'ours'"),
    ],
)
def test_a_config_that_says_nothing_there_raises(names, theirs, match):
    assert_refused(match, residual_from_named, theirs, names)


@pytest.mark.parametrize(
    ("names", "residual", "match"),
    [
        ("kimi_k3", {"sublayers_per_block": 3}, "a block here has 3 sublayers"),
        ("torchtitan", {}, "a block here has 1 sublayers"),
        ("fla", {"sublayers_per_block": 3}, "1 or even .in sublayers., got 3"),
        ("kimi_k3", {"n_blocks": 4}, r"one size .*, not \(2, 2, 1, 1\)"),
        (
            "kimi_k3",
            {"layers_per_block": 2, "eps": 1e-5},
            "eps=1e-05, the model rms_norm_eps=1e-06",
        ),
        ("fla", {"eps": 1e-5}, "fla has one norm_eps for all norms"),
    ],
)
def test_a_residual_without_words_there_raises(names, residual, match):
    made = AttnResCausalLMConfig(
        text_config=config().text_config, residual={"method": "attn_res", **residual}
    )
    assert_refused(match, residual_to_named, made, names)
    assert_refused(match, export_named, AttnResForCausalLM(made), names)


@pytest.mark.parametrize("names", NAMES)
def test_what_else_decides_a_function_has_no_words_there(names):
    state = {**config().residual_state, "norm_eps": "over the square of the number of sources"}
    made: Any = SimpleNamespace(residual_config=AttnResConfig(), residual_state=state)
    assert_refused(
        "has no words for the residual .*over the square", residual_to_named, made, names
    )
    made = SimpleNamespace(residual_config=object(), residual_state={"method": "other"})
    assert_refused("has no words for the residual .*other", residual_to_named, made, names)


def test_torchtitan_has_an_epsilon_for_each_norm():
    made = config(residual="standard")
    made = AttnResCausalLMConfig(
        text_config=made.text_config, residual=AttnResConfig(layers_per_block=1, eps=1e-5)
    )
    assert residual_to_named(made, "torchtitan") == {"attn_res_block_size": 1, "eps": 1e-5}


def test_the_example_of_the_page_on_names_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "names.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example, {})
    report, block = capsys.readouterr().out.splitlines()
    assert report.startswith("55 tensors loaded by the names of kimi_k3. Missing")
    assert block == "{'attnres_block_size': 4, 'norm_eps': 1e-05}"


def test_a_tensor_without_values_is_refused():
    model = build(residual="full")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = {key: torch.zeros_like(tensor) for key, tensor in model.state_dict().items()}
    tensors[name] = tensors[name].to("meta")
    assert_load_refused(f"{name} is on the meta device", model, tensors, "ours")
