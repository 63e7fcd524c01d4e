"""Sizes of a decoder, by formula and as counted from a transformers model."""

from math import inf
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig

from attnres.cost import decoder_sizes
from attnres.cost.kimi_k3 import kimi_k3_sizes
from attnres.models.sizes import read_sizes, sizes_of
from attnres.train.recipe import ModelConfig


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_formula_is_the_model(is_tied):
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, vocab_size=61, tie_word_embeddings=is_tied,
    )  # fmt: skip
    assert sizes_of(config) == decoder_sizes(
        dim=32, n_layers=3, n_heads=4, n_kv_heads=2, mlp_dim=48, vocab_size=61, is_tied=is_tied
    )


def test_attention_is_half_the_square_of_the_sequence():
    sizes = decoder_sizes(dim=32, n_layers=3, n_heads=4, mlp_dim=48, vocab_size=61)
    assert sizes.attention_flops(1) == 3 * 2 * 2 * 32
    assert sizes.attention_flops(99) == 50 * sizes.attention_flops(1)
    weights = 3 * (4 * 32 * 32 + 3 * 32 * 48) + 61 * 32
    assert sizes.forward_flops(99) == 2 * weights + sizes.attention_flops(99)


def brute_mean(seq_len, window):
    return sum(min(place + 1, window) for place in range(seq_len)) / seq_len


def test_a_window_bounds_what_a_token_sees():
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=6, sliding_window=5)
    sizes = sizes_of(config)
    assert sizes.windows == (5, 5, 5, 5, 5, inf)
    seen = 5 * brute_mean(12, 5) + brute_mean(12, inf)
    assert sizes.attention_flops(12) == round(2 * sizes.score_width * seen)


PUBLISHED = {  # billions of parameters, and of those that a token uses
    "kimi_linear": (49.1, 3.1),  # 48 and 3 in arXiv:2603.15031, section 5.2, without embeddings
    "mixtral": (46.7, 12.7),
    "gpt2": (0.124, 0.124),
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_known_model_has_its_known_size(family):
    sizes = sizes_of(AutoConfig.for_model(family))
    found = sizes.n_params / 1e9, sizes.n_active_weights / 1e9
    assert found == pytest.approx(PUBLISHED[family], rel=0.01)


def test_linear_attention_has_no_scores_and_latent_attention_its_own_widths():
    sizes = sizes_of(AutoConfig.for_model("kimi_linear"))
    assert (sizes.n_layers, sizes.n_sublayers, len(sizes.windows)) == (27, 54, 6)
    assert sizes.score_width == 32 * (128 + 64 + 128)


def test_a_parallel_layer_is_one_sublayer():
    config = AutoConfig.for_model("phi", num_hidden_layers=2, hidden_size=64, vocab_size=9)
    assert sizes_of(config).n_sublayers == 2


def test_a_folder_and_its_config_are_read_with_their_residual(tmp_path):
    model = ModelConfig(dim=32, n_layers=2, n_heads=2, n_kv_heads=2, mlp_dim=48)
    plain = model.build(vocab_size=61, seq_len=16)
    plain.config.text_config.save_pretrained(tmp_path / "plain")
    plain.config.save_pretrained(tmp_path / "ours")
    sizes = decoder_sizes(dim=32, n_layers=2, n_heads=2, mlp_dim=48, vocab_size=61)
    assert read_sizes(tmp_path / "plain") == (sizes, None)
    assert read_sizes(tmp_path / "plain" / "config.json") == (sizes, None)
    assert read_sizes(tmp_path / "ours") == (sizes, model.residual)
    with pytest.raises(ValueError, match="no config of a transformers model in"):
        read_sizes(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["dim", "n_layers", "n_heads", "mlp_dim", "vocab_size"])
def test_a_size_that_cannot_be_is_refused(name):
    sizes: Any = {"dim": 8, "n_layers": 1, "n_heads": 2, "mlp_dim": 8, "vocab_size": 9}
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        decoder_sizes(**sizes | {name: 0})


def test_kimi_k3_has_its_published_size():
    sizes = kimi_k3_sizes()
    assert sizes.n_params / 1e12 == pytest.approx(2.78, abs=5e-3)
    assert sizes.n_active_weights / 1e9 == pytest.approx(104.2, abs=0.05)
    assert (sizes.n_sublayers, len(sizes.windows)) == (186, 24)
