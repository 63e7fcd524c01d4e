"""No common pattern of adapters, optimisers or quantisers catches a reader."""

import re

import pytest
from tiny_models import FAMILIES, build
from torch import nn

PATTERNS = [  # of modules, matched as a whole, as PEFT does with a text
    r".*mlp.*",
    r".*attn.*",
    r".*proj$",
    r".*_proj",
    r".*(self_attn|mlp)\..*",
    r".*\.(q|k|v|o|gate|up|down)_proj",
    r".*norm.*",
    r".*layers\.\d+\..*",
    r"model\..*",
    r".*(lm_head|embed).*",
    r".*(dense|fc|query_key_value|c_attn|c_fc).*",
]
SUFFIXES = ["query", "key", "value", "proj", "norm", "weight", "q_proj", "dense", "linear"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", ["full", "block", "two phases"])
def test_no_pattern_of_modules_catches_a_part_of_the_residual(family, residual):
    modules = [name for name, _ in build(family, residual).named_modules()]
    caught = [name for name in modules for pattern in PATTERNS if re.fullmatch(pattern, name)]
    caught += [name for name in modules for suffix in SUFFIXES if name.endswith(f".{suffix}")]
    assert any("mlp" in name for name in caught)
    assert [name for name in caught if name.startswith("residual")] == []


def test_all_linear_layers_are_none_of_the_residual():
    model = build()
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert linear
    assert [name for name in linear if name.startswith("residual")] == []


def test_no_pattern_catches_a_parameter_of_a_reader_but_those_that_say_query_or_weight():
    names = [name for name, _ in build().named_parameters() if name.startswith("residual.")]
    assert len(names) == 12
    parameters = [pattern for pattern in PATTERNS if any(re.fullmatch(pattern, n) for n in names)]
    assert parameters == []
    caught = {suffix for suffix in SUFFIXES for name in names if name.endswith(f".{suffix}")}
    assert caught == {"query"}
    assert {name.split(".")[-1] for name in names if name.endswith("weight")} == {"key_weight"}


def test_a_rule_for_matrices_leaves_readers_alone():
    assert {parameter.ndim for parameter in build().residual.parameters()} == {1}
