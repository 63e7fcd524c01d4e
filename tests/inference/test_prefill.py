"""A prompt in chunks is one pass, in every family; what it holds is what the cost model says."""

from typing import Any

import pytest
import torch
from tiny_families import FAMILIES, build
from tiny_models import tokens
from torch import Tensor
from transformers import DynamicCache, StaticCache

from attnres.cost import prefill_bytes
from attnres.inference import SourceMemory, prefill

N_PROMPT = 13
TOLERANCE = 1e-5  # of the largest logit: float32, other shapes of products and of the softmax


def family_model(family: str, residual: str = "block") -> Any:
    """Router logits are for training: with a cache transformers counts their mask wrongly."""
    model = build(family, residual).eval()
    model.config.text_config.output_router_logits = False
    return model


def padded_prompt() -> tuple[Tensor, Tensor]:
    """Three prompts of 13, 9 and 4 tokens, padded on the left."""
    mask_BT = torch.ones(3, N_PROMPT, dtype=torch.long)
    mask_BT[1, :4] = mask_BT[2, :9] = 0
    return tokens(3, N_PROMPT) * mask_BT, mask_BT


def assert_close(actual_BTV: Tensor, expected_BTV: Tensor) -> None:
    assert actual_BTV.shape == expected_BTV.shape
    error = (actual_BTV - expected_BTV).abs().max()
    assert error <= TOLERANCE * expected_BTV.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_of_transformers_prefills_in_chunks(family):
    model = family_model(family)
    prompt_BT, mask_BT = padded_prompt()
    settings = {"attention_mask": mask_BT, "max_new_tokens": 4, "do_sample": False}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(prompt_BT, **settings)
    for static in ({}, {"cache_implementation": "static", "disable_compile": True}):
        for chunk_tokens in (1, 5):
            found = model.generate(prompt_BT, prefill_chunk_size=chunk_tokens, **settings, **static)
            assert torch.equal(found.sequences, expected.sequences)
            assert_close(torch.stack(found.logits), torch.stack(expected.logits))


@pytest.mark.parametrize(
    ("family", "residual"),
    [(family, "block") for family in FAMILIES]
    + [("llama", residual) for residual in ("standard", "full", "two phases")],
)
def test_the_last_logits_and_the_cache_are_those_of_one_pass(family, residual):
    model = family_model(family, residual)
    prompt_BT, mask_BT = padded_prompt()
    later_BT = tokens(3, 2, seed=5)
    all_BT = torch.cat([prompt_BT, later_BT], dim=1)
    mask_BT = torch.nn.functional.pad(mask_BT, (0, 2), value=1)
    position_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected_BTV = model(all_BT, mask_BT, position_BT, use_cache=False).logits
    for chunk_tokens in (None, 3, 5):
        mask = mask_BT[:, :N_PROMPT]
        found: Any = prefill(model, prompt_BT, chunk_tokens=chunk_tokens, attention_mask=mask)
        assert found.cache.get_seq_length() == N_PROMPT
        assert_close(found.logits, expected_BTV[:, N_PROMPT - 1 : N_PROMPT])
        again: Any = prefill(
            model, later_BT, chunk_tokens=1, attention_mask=mask_BT, cache=found.cache
        )
        assert_close(again.logits, expected_BTV[:, -1:])


def test_without_a_mask_positions_go_on_from_the_cache():
    model = family_model("llama")
    prompt_BT = tokens(2, N_PROMPT)
    with torch.no_grad():
        expected_BTV = model(prompt_BT).logits[:, -1:]
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=16)):
        prefill(model, prompt_BT[:, :6], chunk_tokens=4, cache=cache)
        found: Any = prefill(model, prompt_BT[:, 6:], chunk_tokens=4, cache=cache)
        assert_close(found.logits, expected_BTV)
        assert found.cache is cache


def test_the_head_runs_for_the_last_position_of_a_chunk():
    model = family_model("llama")
    shapes = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape[:2]))
    found: Any = prefill(model, tokens(2, N_PROMPT), chunk_tokens=5)
    assert found.logits.shape == (2, 1, 97)
    assert shapes == [(2, 1)] * 3


@pytest.mark.parametrize("residual", ["full", "block", "two phases"])
@pytest.mark.parametrize(("n_tokens", "chunk_tokens"), [(48, None), (48, 16), (50, 7), (5, 9)])
def test_sources_take_what_is_predicted(residual, n_tokens, chunk_tokens):
    model = family_model("llama", residual)
    n_sources = len(model.residual.layout.sizes) + 1  # the embedding besides the blocks
    with SourceMemory(model.residual) as memory:
        prefill(model, tokens(2, n_tokens), chunk_tokens=chunk_tokens)
    predicted = prefill_bytes(
        n_sources, n_tokens, 32, chunk_tokens=chunk_tokens, bytes_per_number=4
    )
    assert memory.peak_bytes == 2 * predicted  # two sequences
    assert memory.live_bytes == 0
    assert "write" not in vars(model.residual)


def test_a_source_counts_as_long_as_anything_holds_it():
    model = family_model("llama")
    found: list[Any] = []
    with SourceMemory(model.residual) as memory:
        for _ in range(2):
            model(tokens(1, 8), taps=found)
    assert memory.peak_bytes > prefill_bytes(3, 8, 32, bytes_per_number=4)
    assert memory.live_bytes > 0
    found.clear()


def test_what_makes_no_sense_is_refused():
    model, prompt_BT = family_model("llama"), tokens(2, 5)
    with pytest.raises(ValueError, match="chunk_tokens must be"):
        prefill(model, prompt_BT, chunk_tokens=0)
    with pytest.raises(ValueError, match="chunk_tokens must be"):
        prefill(model, prompt_BT[:, :0])
    with pytest.raises(ValueError, match="mask has 4 positions, the cache 0 and the prompt 5"):
        prefill(model, prompt_BT, attention_mask=torch.ones(2, 4))
