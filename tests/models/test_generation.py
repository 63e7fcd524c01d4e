"""Generation: the KV cache changes nothing, and depth needs no cache."""

import pytest
import torch
from tiny_models import FAMILIES, VOCAB_SIZE, build, tokens
from torch import Tensor
from transformers import DynamicCache

models = pytest.mark.parametrize(
    ("family", "residual"),
    [(family, residual) for family in FAMILIES for residual in ("full", "block")]
    + [("llama", "standard"), ("llama", "two phases")],
)


def padded_prompts() -> tuple[Tensor, Tensor]:
    """Three prompts of 9, 6 and 2 tokens, padded on the left."""
    prompt_BT = tokens(batch=3, length=9)
    mask_BT = torch.ones_like(prompt_BT)
    for row, n_padding in enumerate((0, 3, 7)):
        prompt_BT[row, :n_padding] = mask_BT[row, :n_padding] = 0
    return prompt_BT, mask_BT


def greedy_without_cache(model, prompt_BT: Tensor, mask_BT: Tensor, n_new: int) -> Tensor:
    for _ in range(n_new):
        position_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        out = model(prompt_BT, mask_BT, position_BT, use_cache=False)
        assert out.cache is None
        prompt_BT = torch.cat([prompt_BT, out.logits[:, -1:].argmax(-1)], dim=1)
        mask_BT = torch.nn.functional.pad(mask_BT, (0, 1), value=1)
    return prompt_BT


@models
def test_generate_is_the_full_forward_for_prompts_padded_on_the_left(family, residual):
    model = build(family, residual).eval()
    prompt_BT, mask_BT = padded_prompts()
    with torch.no_grad():
        expected = greedy_without_cache(model, prompt_BT, mask_BT, n_new=8)
    for use_cache in (True, False):
        actual = model.generate(
            prompt_BT,
            attention_mask=mask_BT,
            max_new_tokens=8,
            do_sample=False,
            use_cache=use_cache,
        )
        assert torch.equal(actual, expected)


@models
@pytest.mark.parametrize("chunks", [(9, *[1] * 8), (3, 5, 4, 4, 1)], ids=["decode", "prefill"])
def test_tokens_in_pieces_are_one_forward(family, residual, chunks):
    model = build(family, residual).eval()
    tokens_BT = tokens(length=17)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(tokens_BT, use_cache=False).logits
        pieces = [
            model(piece_BT, cache=cache, use_cache=True).logits
            for piece_BT in tokens_BT.split(chunks, dim=1)
        ]
    error = (torch.cat(pieces, dim=1) - expected).abs().max()
    assert error <= 1e-5 * expected.abs().max()
    assert cache.get_seq_length() == 17


def test_a_model_in_training_generates_with_its_cache_and_checkpointing():
    model = build()
    prompt_BT, mask_BT = padded_prompts()
    settings = {"attention_mask": mask_BT, "max_new_tokens": 4, "do_sample": False}
    expected = model.eval().generate(prompt_BT, **settings)
    model.activation_checkpointing_enable()
    assert torch.equal(model.train().generate(prompt_BT, **settings), expected)


def test_beams_with_cache_are_beams_without():
    model = build().eval()
    prompt_BT, mask_BT = padded_prompts()
    settings = {"attention_mask": mask_BT, "max_new_tokens": 5, "do_sample": False, "num_beams": 3}
    with_cache = model.generate(prompt_BT, use_cache=True, **settings)
    assert torch.equal(with_cache, model.generate(prompt_BT, use_cache=False, **settings))
    assert with_cache.max() < VOCAB_SIZE


def test_a_static_cache_gives_the_same_tokens():
    model = build().eval()
    prompt_BT, mask_BT = padded_prompts()
    settings = {"attention_mask": mask_BT, "max_new_tokens": 5, "do_sample": False}
    expected = model.generate(prompt_BT, **settings)
    static = model.generate(
        prompt_BT, cache_implementation="static", disable_compile=True, **settings
    )
    assert torch.equal(static, expected)
