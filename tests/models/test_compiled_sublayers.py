"""Sublayers compiled one by one give what the model gives; each kind is compiled once."""

from functools import partial

import pytest
import torch
from tiny_families import build
from tiny_models import assert_same, gradients, tokens
from torch._dynamo.testing import CompileCounter

from attnres.models.compiled import compile_sublayers

N_GRAPHS = {"llama": 2, "gpt2": 2, "phi": 1, "gemma2": 2}  # attention and MLP, or one of both


@pytest.mark.parametrize("family", N_GRAPHS)
def test_gradients_are_those_of_the_model(family, monkeypatch):
    changes = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    model = build(family, **(changes if family == "gpt2" else {})).train()
    expected = _step(model)
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    compile_sublayers(model)
    assert_same(_step(model), expected)
    assert counter.frame_count == N_GRAPHS[family]


def _step(model):
    model.zero_grad()
    outputs = model(tokens(), labels=tokens(), use_cache=False)
    outputs.loss.backward()
    return {"logits": outputs.logits.detach(), **gradients(model)}
