"""A checkpoint shaped and named as Kimi K3's: read in its order of steps, with every gradient.

Attention and MLP are those of a Llama in the place of K3's own.
"""

from typing import Any

import pytest
import torch
from tiny_models import compute_norms_in_their_dtype, tokens
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from attnres.models import (
    AttnResCausalLMConfig,
    AttnResForCausalLM,
    export_named,
    load_named,
    residual_from_named,
)
from attnres.residual import residual_to_json

PREFIX = "language_model."
LAYERS, BLOCK, DIM, MLP_DIM, VOCAB_SIZE = 7, 3, 20, 28, 97
CONFIG: dict[str, Any] = {
    "model_type": "kimi_k3",
    "text_config": {"attn_res_block_size": BLOCK, "rms_norm_eps": 1e-5},
}
LLAMA = LlamaConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=DIM,
    intermediate_size=MLP_DIM,
    num_hidden_layers=LAYERS,
    num_attention_heads=5,
    num_key_value_heads=5,
    head_dim=4,
    rms_norm_eps=1e-5,
    max_position_embeddings=32,
    tie_word_embeddings=False,
)


def checkpoint(dtype: torch.dtype) -> dict[str, Tensor]:
    """Random tensors; also of a reader before the first sublayer, as K3 has."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (VOCAB_SIZE, DIM), "lm_head": (VOCAB_SIZE, DIM)}
    shapes |= {f"model.{name}": (DIM,) for name in ("norm", "output_attn_res_norm")}
    shapes |= {"model.output_attn_res_proj": (1, DIM)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{part}_proj": (DIM, DIM) for part in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj": (MLP_DIM, DIM) for part in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (DIM, MLP_DIM)}
        shapes |= {f"{layer}.{n}_layernorm": (DIM,) for n in ("input", "post_attention")}
        for reader in ("self_attention_res", "mlp_res"):
            shapes |= {f"{layer}.{reader}_norm": (DIM,), f"{layer}.{reader}_proj": (1, DIM)}
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensor = 1 + noise / 4 if len(shape) == 1 else noise / DIM**0.5
        tensors[f"{PREFIX}{name}.weight"] = tensor.to(dtype)
    return tensors


def plain_llama(tensors: dict[str, Tensor], dtype: torch.dtype) -> Any:
    model: Any = LlamaForCausalLM(LLAMA)
    model = model.to(dtype)
    ours = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    model.load_state_dict({name: x for name, x in ours.items() if "_res_" not in name})
    return model


def joined(tensors: dict[str, Tensor], dtype: torch.dtype, method: str = "attn_res") -> Any:
    residual = residual_to_json(residual_from_named(CONFIG, "kimi_k3"))
    config = AttnResCausalLMConfig(text_config=LLAMA, residual={**residual, "method": method})
    model: Any = AttnResForCausalLM(config)
    model = model.to(dtype)
    report = load_named(model, tensors, "kimi_k3", config=CONFIG)
    assert (len(report.loaded), report.missing, report.extra) == (len(tensors) - 2, (), ())
    return model


def mix(tensors: dict[str, Tensor], reader: str, candidates: list[Tensor]) -> Tensor:
    proj_1D, norm_D = (tensors[f"{PREFIX}model.{reader}_{x}.weight"] for x in ("proj", "norm"))
    values_SBTD = torch.stack(candidates)
    inverse_rms = (values_SBTD.square().mean(-1) + 1e-5).rsqrt()
    probs_SBT = (inverse_rms * (values_SBTD @ (norm_D * proj_1D[0]))).softmax(0)
    return (probs_SBT[..., None] * values_SBTD).sum(0)


def k3_logits(llama: Any, tensors: dict[str, Tensor], ids_BT: Tensor) -> Tensor:
    """K3's steps, one by one: a bank of block sums, and the running sum `prefix`."""
    bank, prefix = [], llama.model.embed_tokens(ids_BT)
    rotary = llama.model.rotary_emb(prefix, torch.arange(ids_BT.shape[1])[None])
    for i, layer in enumerate(llama.model.layers):
        reader = f"layers.{i}.self_attention_res"
        h = mix(tensors, reader, [*bank, prefix]) if bank else prefix
        opens = i % BLOCK == 0
        bank = [*bank, prefix] if opens else bank  # the sum that came in, not the mix
        h = layer.input_layernorm(h)
        out, _ = layer.self_attn(h, position_embeddings=rotary, attention_mask=None)
        prefix = out if opens else prefix + out
        h = mix(tensors, f"layers.{i}.mlp_res", [*bank, prefix])
        prefix = prefix + layer.mlp(layer.post_attention_layernorm(h))
    h = mix(tensors, "output_attn_res", [*bank, prefix])
    return llama.lm_head(llama.model.norm(h))


@pytest.mark.parametrize("method", ["attn_res", "two_phase"])
def test_logits_and_every_gradient_are_those_of_the_steps_of_k3(method, monkeypatch):
    dtype, ids_BT = torch.float64, tokens(2, 7)
    tensors = checkpoint(dtype)
    model, llama = joined(tensors, dtype, method), plain_llama(tensors, dtype)
    compute_norms_in_their_dtype(monkeypatch, llama)
    for name, tensor in tensors.items():
        tensor.requires_grad_("_res_" in name)
    expected_BTV, actual_BTV = k3_logits(llama, tensors, ids_BT), model(ids_BT).logits
    assert_close(actual_BTV, expected_BTV, "logits")
    upstream_BTV = torch.randn(actual_BTV.shape, dtype=dtype)
    expected_BTV.backward(upstream_BTV)
    actual_BTV.backward(upstream_BTV)
    parameters = dict(llama.named_parameters())
    for name, tensor in gradients_named(model).items():
        ours = name.removeprefix(PREFIX)
        expected = parameters[ours].grad if ours in parameters else tensors[name].grad
        if ".0.self_attention_res" not in name:  # one source: it is never read
            assert expected is not None, name
            assert_close(tensor, expected, name)


def gradients_named(model: Any) -> dict[str, Tensor]:
    """Gradients under the names of K3: in the place of the values in an export."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return export_named(model, "kimi_k3")


def test_generation_with_a_cache_continues_by_the_steps_of_k3():
    tensors, dtype = checkpoint(torch.float32), torch.float32
    model, llama, ids_BT = joined(tensors, dtype).eval(), plain_llama(tensors, dtype), tokens(1, 4)
    actual = model.generate(ids_BT, max_new_tokens=8, do_sample=False)
    for _ in range(8):
        last_BV = k3_logits(llama, tensors, ids_BT)[:, -1]
        ids_BT = torch.cat([ids_BT, last_BV.argmax(-1, keepdim=True)], dim=1)
    assert actual.tolist() == ids_BT.tolist()


def test_the_fixture_counts_its_blocks_in_layers():
    layout = joined(checkpoint(torch.float32), torch.float32).residual.layout
    assert layout.sizes == (2 * BLOCK, 2 * BLOCK, 2)  # a short last block, as K3's


def assert_close(actual: Tensor, expected: Tensor, name: str) -> None:
    """To the rounding of float64 over seven layers."""
    error = (actual - expected).abs().max()
    assert error <= 1e-12 * expected.abs().max(), f"{name}: {error:.1e}"
