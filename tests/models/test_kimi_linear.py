"""Kimi Linear: its delta attention goes by device, and its config says what the model is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from tiny_families import build, text_config
from tiny_models import gradients, tokens
from transformers import AutoConfig
from transformers.models.kimi_linear import modeling_kimi_linear

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.kimi_linear import BoundedGate, layer_types
from attnres.ops.kda import LOWER_BOUND, kda_by_token, unit_norm

ROOT = Path(__file__).parents[2]
FAKE_FLA = """
def __getattr__(name):
    def kernel(*args, **kwargs):
        raise RuntimeError("0 active drivers")
    return kernel
def chunk_kda(*args, **kwargs): raise RuntimeError("0 active drivers")
def fused_recurrent_kda(*args, **kwargs): raise RuntimeError("0 active drivers")
"""
RUN = """
import sys, torch
sys.path.insert(0, "tests/models"); sys.path.insert(0, "tests")
from tiny_families import build
from tiny_models import tokens
model = build("kimi_linear")
model(tokens(), labels=tokens()).loss.backward()
print(model.eval().generate(tokens(), max_new_tokens=3, do_sample=False).shape[1])
import fla
print(fla.__file__)
"""


@pytest.mark.slow
def test_a_kernel_package_without_a_gpu_breaks_nothing(tmp_path):
    for package in ("fla", "causal_conv1d"):
        (tmp_path / f"{package}.py").write_text(FAKE_FLA)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["14", str(tmp_path / "fla.py")]


def random_qkv(dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 70, 3, 8, generator=generator).to(dtype)
    g = -torch.randn(2, 70, 3, 8, generator=generator).exp()
    return [q, k, v], {"g": g, "beta": torch.rand(2, 70, 3, generator=generator).to(dtype)}


def exactly(q, k, v, g, beta):
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    return kda_by_token(unit_norm(q) * 8**-0.5, unit_norm(k), v, g, beta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["chunk", "recurrent"])
def test_ours_has_the_arguments_and_results_of_theirs(name, dtype):
    chosen: Any = getattr(modeling_kimi_linear, f"{name}_kimi_delta_attention")
    qkv, others = random_qkv(dtype)
    settings = {"initial_state": None, "use_qk_l2norm_in_kernel": True}
    for keeps in (True, False):
        actual, state = chosen(*qkv, **others, **settings, output_final_state=keeps)
        expected, last = chosen.__wrapped__(*qkv, **others, **settings, output_final_state=keeps)
        exact, exact_state = exactly(*qkv, **others)
        assert_as_good_as(actual, expected, exact, "out")
        if keeps:
            assert state.dtype == torch.float32
            assert_as_good_as(state, last, exact_state, "state")
        else:
            assert state is last is None


def test_packed_sequences_are_refused_and_not_mixed():
    qkv, others = random_qkv(torch.float32)
    with pytest.raises(ValueError, match="packed sequences are kept apart by"):
        modeling_kimi_linear.chunk_kimi_delta_attention(
            *qkv, **others, cu_seqlens=torch.tensor([0, 30, 70])
        )


def test_full_attention_is_every_fourth_layer_and_the_last():
    full = [i + 1 for i, kind in enumerate(layer_types(27)) if kind == "full_attention"]
    assert full == [4, 8, 12, 16, 20, 24, 27]
    assert layer_types(1) == ["full_attention"]
    assert layer_types(93).count("full_attention") == 24


LISTS = {"full_attn_layers": [4, 5], "kda_layers": [1, 2, 3]}
WRONG = {
    "counted from 0": (
        {"linear_attn_config": {"full_attn_layers": [3, 4], "kda_layers": [0, 1, 2]}},
        r"full_attn_layers=\[3, 4\] .*each layer from 1 to 5 once: they count from 1",
    ),
    "a layer twice": (
        {"linear_attn_config": {"full_attn_layers": [4, 5], "kda_layers": [1, 2, 3, 4]}},
        "each layer from 1 to 5 once",
    ),
    "one list": (
        {"linear_attn_config": {"full_attn_layers": [4, 5]}},
        "given together or not at all",
    ),
    "two words": (
        {"linear_attn_config": {**LISTS, "full_attn_layers": [3, 5], "kda_layers": [1, 2, 4]},
         "layer_types": layer_types(5)},
        r"full_attn_layers=\[3, 5\] \(from 1\) are not those of",
    ),
    "another router": ({"moe_router_activation_func": "softmax"}, "ignores it"),
    "dense between": ({"moe_layer_freq": 2}, "moe_layer_freq=2: .* has 1 and ignores it"),
    "rotary": ({"mla_use_nope": False}, "mla_use_nope=False"),
    "latent experts": ({"routed_expert_hidden_size": 16}, "routed_expert_hidden_size=16"),
    "a gate of full rank": (
        {"linear_attn_config": {**LISTS, "use_full_rank_gate": True}},
        "use_full_rank_gate=True",
    ),
}  # fmt: skip


def joined(**changes: Any) -> AttnResCausalLMConfig:
    settings: dict[str, Any] = {"num_hidden_layers": 5, "layer_types": layer_types(5),
                                "mlp_layer_types": None}  # fmt: skip
    if "linear_attn_config" in changes:
        settings["layer_types"] = None
    return AttnResCausalLMConfig(text_config=text_config("kimi_linear", **{**settings, **changes}))


@pytest.mark.parametrize("name", WRONG)
def test_a_config_of_another_model_than_it_says_is_refused(name):
    changes, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        joined(**changes)


def test_the_default_layers_of_transformers_are_warned_of():
    with pytest.warns(UserWarning, match=r"full attention in layers 5, 9, .*released models"):
        joined(layer_types=None)
    text = joined(linear_attn_config=LISTS).text_config
    assert text.layer_types == layer_types(5)


def test_a_block_size_in_layers_is_a_layout():
    config = joined(attn_res_block_size=2)
    assert config.residual == {"method": "attn_res", "layers_per_block": 2, "eps": 1e-5}
    assert config.residual_state["layout"]["sizes"] == [4, 4, 2]
    text = text_config("kimi_linear", attn_res_block_size=2)
    same = AttnResCausalLMConfig(text_config=text, residual="two_phase:sublayers_per_block=4")
    assert same.residual_state["layout"]["sizes"] == [4, 2]
    for other in ("standard", "attn_res:sublayers_per_block=2"):
        with pytest.raises(ValueError, match=r"attn_res_block_size=2 \(in layers\) asks for"):
            AttnResCausalLMConfig(text_config=text, residual=other)


def test_a_bounded_gate_starts_at_rate_one_and_keeps_its_bound(tmp_path):
    model = build("kimi_linear", linear_attn_config={"gate_lower_bound": LOWER_BOUND})
    gates = [m for m in model.modules() if isinstance(m, BoundedGate)]
    assert len(gates) == 2
    h_BTD = 50 * torch.randn(2, 9, 32)
    for gate in gates:
        assert not gate.A_log.any()
        torch.nn.init.uniform_(gate.A_log, 0, 2)
        decay_BTHK = gate(h_BTD)
        assert decay_BTHK.min() >= LOWER_BOUND
        assert decay_BTHK.max() <= 0
    model(tokens(), labels=tokens()).loss.backward()
    found = gradients(model)
    assert all(found[name].any() for name in found if "A_log" in name or "dt_bias" in name)
    model.save_pretrained(tmp_path)
    again: Any = AttnResForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    free = build("kimi_linear")
    assert not torch.equal(free(tokens()).logits, model(tokens()).logits)
    with pytest.raises(ValueError, match=r"has gate_lower_bound=-5.0, but text_config has None"):
        AttnResForCausalLM.from_pretrained(tmp_path, config=free.config)


def test_the_48b_model_has_its_size_and_what_attention_over_depth_adds():
    text = AutoConfig.for_model("kimi_linear", layer_types=layer_types(27), attn_res_block_size=3)
    with torch.device("meta"):
        model: Any = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text))
    added = sum(parameter.numel() for parameter in model.residual.parameters())
    n_params = sum(parameter.numel() for parameter in model.parameters())
    # 54 sublayers and the output read, but no reader before the first
    assert (n_params - added, added) == (49_122_675_072, 253_440 - 2 * 2304)
    assert model.residual.layout.sizes == (6,) * 9
    assert model.residual.layout.n_sources(54) == 10
