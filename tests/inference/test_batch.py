"""A sequence and its batch mates: what they cannot change, and how little their number changes."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
import torch._dynamo
from depth_methods import random_residual
from implementations import needs_compiler, needs_cpu_kernel
from tiny_models import build, tokens
from torch import Tensor
from transformers import CompileConfig

from attnres.residual import AttnResConfig, CenteredConfig, SummedConfig, TwoPhaseConfig

RESIDUALS = ["full", "block", "two phases"]
EXACT = [
    AttnResConfig(),
    AttnResConfig(sublayers_per_block=2),
    AttnResConfig(sublayers_per_block=5),
    TwoPhaseConfig(),
    TwoPhaseConfig(sublayers_per_block=5),
    CenteredConfig(sublayers_per_block=2),
    SummedConfig(sublayers_per_block=2),
]
TOLERANCE = 1e-5  # of the largest logit: float32, products of other shapes
LENGTHS = (9, 6, 2)
GREEDY = {"max_new_tokens": 6, "do_sample": False}

residuals = pytest.mark.parametrize("residual", RESIDUALS)


def all_reads(residual: Any, embed_BTD: Tensor) -> list[Tensor]:
    """Of sublayers that act on each number alone, so that only the residual could differ."""
    state, reads = residual.start(embed_BTD), []
    for depth in range(residual.n_sublayers):
        h_BTD, state = residual.read(state, depth)
        reads.append(h_BTD)
        state = residual.write(state, depth, torch.sin((depth + 1) * h_BTD))
    return [*reads, residual.finish(state)]


@needs_cpu_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dim", [24, 33, 120])
@pytest.mark.parametrize("config", EXACT, ids=lambda config: type(config).__name__)
@torch.no_grad()
def test_a_read_is_the_same_bits_whatever_else_is_read(config, dim, dtype):
    residual = random_residual(config, dim, 6).to(dtype)
    for module in residual.modules():
        if hasattr(module, "impl"):
            cast(Any, module).impl = "cpu"  # plain PyTorch sums in an order that shapes decide
    embed_BTD = torch.randn(5, 7, dim, dtype=dtype)
    whole = all_reads(residual, embed_BTD)
    for rows, positions in (
        (slice(2, 3), slice(None)),  # a sequence alone
        (slice(None), slice(3, 4)),  # one token of each, as in decoding
        (slice(1, 4), slice(2, 7)),  # a chunk, or a shard
    ):
        part = all_reads(residual, embed_BTD[rows, positions])
        for depth, (h_BTD, whole_BTD) in enumerate(zip(part, whole, strict=True)):
            assert torch.equal(h_BTD, whole_BTD[rows, positions]), f"read {depth}"


def padded_batch() -> tuple[Tensor, Tensor]:
    """Prompts of unequal lengths, padded on the left."""
    mask_BT = torch.stack([torch.arange(9) >= 9 - n for n in LENGTHS]).long()
    return tokens(3, 9) * mask_BT, mask_BT


def logits_of(model: Any, prompt_BT: Tensor, mask_BT: Tensor) -> Tensor:
    position_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(prompt_BT, mask_BT, position_BT).logits


@residuals
def test_what_batch_mates_say_changes_no_bit(residual):
    model = build(residual=residual).eval()
    prompt_BT, mask_BT = padded_batch()
    logits_BTV = logits_of(model, prompt_BT, mask_BT)
    others_BT = tokens(3, 9, seed=4)
    for row, n_real in enumerate(LENGTHS):
        changed_BT = others_BT.clone()  # the other sequences, and this one's padding
        changed_BT[row, -n_real:] = prompt_BT[row, -n_real:]
        changed_BTV = logits_of(model, changed_BT, mask_BT)
        assert torch.equal(changed_BTV[row, -n_real:], logits_BTV[row, -n_real:])


@residuals
def test_a_sequence_alone_is_that_in_a_batch_to_rounding(residual):
    model = build(residual=residual).eval()
    prompt_BT, mask_BT = padded_batch()
    logits_BTV = logits_of(model, prompt_BT, mask_BT)
    for row, n_real in enumerate(LENGTHS):
        alone_BT = prompt_BT[row : row + 1, -n_real:]
        alone_BTV = logits_of(model, alone_BT, torch.ones_like(alone_BT))
        error = (alone_BTV[0] - logits_BTV[row, -n_real:]).abs().max()
        assert error <= TOLERANCE * alone_BTV.abs().max()


@residuals
@pytest.mark.parametrize("n_beams", [1, 3])
def test_text_of_a_batch_is_that_of_each_sequence_alone(residual, n_beams):
    model = build(residual=residual).eval()
    prompt_BT, mask_BT = padded_batch()
    settings = {**GREEDY, "num_beams": n_beams}
    found_BT = model.generate(prompt_BT, attention_mask=mask_BT, **settings)
    for row, n_real in enumerate(LENGTHS):
        alone_BT = model.generate(prompt_BT[row : row + 1, -n_real:], **settings)
        assert torch.equal(found_BT[row, -alone_BT.shape[1] :], alone_BT[0])


@residuals
def test_assisted_text_is_greedy_text(residual):
    model, other = build(residual=residual).eval(), build(residual="full", num_hidden_layers=1)
    prompt_BT = tokens(1, 9)
    expected_BT = model.generate(prompt_BT, **GREEDY)
    for helped in ({"assistant_model": other.eval()}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(prompt_BT, **GREEDY, **helped), expected_BT)


def assert_compiled_text(residual: str, backend: str, chunk_tokens: int | None) -> None:
    """With a static cache; the prefill is compiled where it is in chunks, decoding always."""
    model = build(residual=residual).eval()
    prompt_BT, mask_BT = padded_batch()
    settings = {**GREEDY, "attention_mask": mask_BT}
    expected_BT = model.generate(prompt_BT, **settings)
    graphs: Any = CompileConfig(fullgraph=True, backend=backend, mode="default")
    graphs._compile_all_devices = True  # transformers leaves a CPU out
    settings |= {"cache_implementation": "static", "compile_config": graphs}
    found_BT = model.generate(prompt_BT, prefill_chunk_size=chunk_tokens, **settings)
    assert torch.equal(found_BT, expected_BT)
    assert "_compiled_call" in vars(model)


@pytest.fixture
def _compile_anew() -> Iterator[None]:
    """What is compiled for one test's model is forgotten: after eight models torch gives up."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("_compile_anew")
@residuals
def test_a_static_cache_compiles_as_one_graph(residual):
    assert_compiled_text(residual, "eager", chunk_tokens=None)


@pytest.mark.slow
@pytest.mark.usefixtures("_compile_anew")
@pytest.mark.parametrize(
    ("backend", "chunk_tokens"),
    [("eager", 4), pytest.param("inductor", None, marks=needs_compiler)],
)
def test_compiled_code_gives_the_same_text(backend, chunk_tokens):
    assert_compiled_text("block", backend, chunk_tokens)
