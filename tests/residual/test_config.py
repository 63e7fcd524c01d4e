"""Residual methods by name: JSON and the text of the command line."""

import json
from typing import Any, cast

import pytest

from attnres import AttnRes, BlockLayout, Standard
from attnres.residual import (
    AttnResConfig,
    CenteredConfig,
    HighwayConfig,
    HyperConnectionsConfig,
    LaurelConfig,
    LayerScaleConfig,
    ManifoldHyperConnectionsConfig,
    ScaledEmbeddingConfig,
    StandardConfig,
    SummedConfig,
    TwoPhaseConfig,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)

TEXTS = {
    "standard": StandardConfig(),
    "attn_res:eps=1e-06": AttnResConfig(),
    "attn_res:n_blocks=8,eps=1e-06": AttnResConfig(n_blocks=8),
    "attn_res:layers_per_block=12,eps=1e-05": AttnResConfig(layers_per_block=12, eps=1e-5),
    "attn_res:sublayers_per_block=3,eps=0.0": AttnResConfig(sublayers_per_block=3, eps=0.0),
    "attn_res:eps=1e-06,kernel=sigmoid,key_norm=False": AttnResConfig(
        kernel="sigmoid", key_norm=False
    ),
    "attn_res:n_blocks=4,eps=1e-06,count_prior=0.5,null_source=True": AttnResConfig(
        n_blocks=4, count_prior=0.5, null_source=True
    ),
    "sum:n_blocks=8,eps=1e-06": SummedConfig(n_blocks=8),
    "centered:eps=1e-06": CenteredConfig(),
    "centered:layers_per_block=2,eps=1e-05": CenteredConfig(layers_per_block=2, eps=1e-5),
    "two_phase:eps=1e-06": TwoPhaseConfig(),
    "two_phase:n_blocks=8,readers_per_group=6,eps=1e-06": TwoPhaseConfig(
        n_blocks=8, readers_per_group=6
    ),
    "highway:gate=dense,bias=-1.5": HighwayConfig(gate="dense", bias=-1.5),
    "scaled_embedding": ScaledEmbeddingConfig(),
    "scaled_embedding:scale=50": ScaledEmbeddingConfig(scale=50),
    "layer_scale": LayerScaleConfig(),
    "laurel:weights=False,rank=8,n_previous=2": LaurelConfig(weights=False, rank=8, n_previous=2),
    "hyper:n_streams=2,dynamic=False,eps=1e-06": HyperConnectionsConfig(n_streams=2, dynamic=False),
    "mhc:n_streams=4,constraint=identity,reading=even,eps=1e-06": ManifoldHyperConnectionsConfig(
        constraint="identity", reading="even"
    ),
}
every_text = pytest.mark.parametrize(("text", "config"), TEXTS.items(), ids=TEXTS)


@every_text
def test_text_round_trip(text, config):
    assert parse_residual(text) == config
    assert format_residual(config) == text


@every_text
def test_json_round_trip(text, config):
    data = json.loads(json.dumps(residual_to_json(config)))
    assert data["method"] == text.partition(":")[0]
    assert None not in data.values()
    assert residual_from_json(data) == config


def test_settings_left_out_take_their_defaults():
    assert parse_residual("attn_res") == AttnResConfig()
    assert parse_residual("attn_res:n_blocks=8") == AttnResConfig(n_blocks=8)
    assert residual_from_json({"method": "attn_res"}) == AttnResConfig()


def test_reading_json_does_not_change_it():
    data = {"method": "attn_res", "n_blocks": 8}
    residual_from_json(data)
    assert data == {"method": "attn_res", "n_blocks": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "attnres",
            "no residual method 'attnres'; there are: standard, attn_res, two_phase, sum, cen",
        ),
        ("", "no residual method ''; there are: standard, attn_res, two_phase, sum, cen"),
        ("standard:eps=0", "'standard' has no setting 'eps'; it has: none"),
        ("attn_res:n_blocks", "name=value, got 'n_blocks' in 'attn_res:n_blocks'"),
        ("attn_res:n_blocks=eight", "n_blocks must be a positive integer, got 'eight'"),
        ("attn_res:n_blocks=true", "n_blocks must be a positive integer, got True"),
        ("attn_res:eps=true", "eps must be finite and not negative, got True"),
        ("attn_res:n_blocks=", "name=value, got 'n_blocks=' in 'attn_res:n_blocks='"),
        ("attn_res:n_blocks=8,n_blocks=4", "'n_blocks' is given twice in 'attn_res:n_blocks=8,n_b"),
    ],
)
def test_text_that_says_nothing_known_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_residual(text)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "no residual method None"),
        (
            {"method": "mine"},
            "no residual method 'mine'; there are: standard, attn_res, two_phase, sum, cen",
        ),
        ({"method": "attn_res", "span": 2}, "'attn_res' has no setting 'span'; it has: sublayers"),
    ],
)
def test_unknown_json_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        residual_from_json(data)


def test_configs_build_what_they_say():
    assert isinstance(StandardConfig().build(8, 6), Standard)
    full, block = AttnResConfig().build(8, 6), AttnResConfig(layers_per_block=1).build(8, 6)
    assert isinstance(full, AttnRes)
    assert full.layout == BlockLayout.full(6)
    assert block.layout == BlockLayout((2, 2, 2))
    assert StandardConfig().describe(6) == {}


def test_more_blocks_than_sublayers_are_refused_where_the_model_is_built():
    with pytest.raises(ValueError, match="n_blocks=7"):
        AttnResConfig(n_blocks=7).build(8, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_blocks": 2, "layers_per_block": 2}, "exactly one.*layers_per_block=2, n_blocks=2"),
        ({"n_blocks": -2}, "n_blocks must be a positive integer, got -2"),
        ({"sublayers_per_block": 1.5}, "sublayers_per_block .* got 1.5"),
        ({"layers_per_block": True}, "layers_per_block .* got True"),
        ({"eps": -1.0}, "eps .* got -1.0"),
        ({"eps": float("nan")}, "eps .* got nan"),
        ({"eps": "1e-5"}, "eps .* got '1e-5'"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, message):
    for kind in (AttnResConfig, TwoPhaseConfig, SummedConfig, CenteredConfig):
        with pytest.raises(ValueError, match=message):
            kind(**settings)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4"])
def test_a_group_has_a_positive_number_of_readers(value):
    with pytest.raises(ValueError, match=f"readers_per_group .* got {value!r}"):
        TwoPhaseConfig(readers_per_group=value)


def test_a_bare_block_size_is_refused_with_both_ways_of_counting():
    with pytest.raises(ValueError, match=r"sublayers_per_block .*FLA.* layers_per_block .*Mega"):
        parse_residual("attn_res:block_size=4")


def test_what_is_no_config_is_not_written():
    with pytest.raises(ValueError, match="no config of a residual method"):
        residual_to_json(cast(Any, {"method": "standard"}))
