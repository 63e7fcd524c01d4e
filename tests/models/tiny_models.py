"""Tiny models of every family, and what their tests compare."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM

VOCAB_SIZE = 97
FAMILIES: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
RESIDUALS: dict[str, dict[str, Any]] = {
    "standard": {"method": "standard"},
    "full": {"method": "attn_res"},
    "block": {"method": "attn_res", "sublayers_per_block": 3},  # closes inside a layer
    "two phases": {"method": "two_phase", "sublayers_per_block": 3},
}


def text_config(family: str = "llama", **changes: Any) -> PreTrainedConfig:
    """Three layers, 32 wide; Mistral with a window of 4 tokens."""
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    if family == "mistral":
        settings["sliding_window"] = 4
    return FAMILIES[family](**{**settings, **changes})


def config(family: str = "llama", residual: str = "block", **changes: Any) -> AttnResCausalLMConfig:
    return AttnResCausalLMConfig(
        text_config=text_config(family, **changes), residual=dict(RESIDUALS[residual])
    )


def build(
    family: str = "llama", residual: str = "block", *, trained: bool = True, **changes: Any
) -> Any:
    """An AttnResForCausalLM with random weights; `trained` moves its readers from their start."""
    torch.manual_seed(0)
    model = AttnResForCausalLM(config(family, residual, **changes))
    return randomise_readers(model) if trained else model


def randomise_readers(model: AttnResForCausalLM) -> AttnResForCausalLM:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.residual.named_parameters():
        noise = torch.rand(parameter.shape, generator=generator)
        parameter.data.copy_(noise - 0.5 if name.endswith("query") else noise + 0.5)
    return model


def plain(family: str = "llama", **changes: Any) -> Any:
    """The transformers model itself."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(text_config(family, **changes))


def tokens(batch: int = 2, length: int = 11, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=generator)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def compute_norms_in_their_dtype(monkeypatch, model: Any) -> None:
    """The norms of transformers round to float32, so nothing could be equal to 1e-12."""

    def forward(self, x):
        mean_square = x.square().mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.variance_epsilon))

    monkeypatch.setattr(type(model.model.layers[0].input_layernorm), "forward", forward)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


def assert_pieces_are_one_forward(model: Any) -> None:
    """Logits of tokens that come in pieces, with a cache, are those of one call."""
    tokens_BT = tokens(length=13)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(tokens_BT, use_cache=False).logits
        pieces = [
            model(piece_BT, cache=cache, use_cache=True).logits
            for piece_BT in tokens_BT.split((7, 2, 1, 1, 1, 1), dim=1)
        ]
    error = (torch.cat(pieces, dim=1) - expected).abs().max()
    assert error <= 1e-5 * expected.abs().max()
