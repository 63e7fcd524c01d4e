"""torch.compile(fullgraph=True) of a read, for a fixed list of sources, equals eager."""

import pytest
import torch
from error_budget import forward_backward, random_read
from implementations import IMPLEMENTATIONS, needs_compiler

from attnres import depth_attention


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_traced_equals_eager_for_any_number_of_tokens(impl):
    _assert_compiled_equals_eager(impl, backend="aot_eager", token_counts=(5, 1, 0))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_closed_form_equals_eager(dtype):
    """Epsilon stays a number of the arithmetic's dtype."""
    _assert_compiled_equals_eager("closed_form", "inductor", (5,), dtype)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_compiled_equals_eager_for_any_number_of_tokens(impl):
    _assert_compiled_equals_eager(impl, backend="inductor", token_counts=(5, 1, 0))


def _assert_compiled_equals_eager(impl, backend, token_counts, dtype=torch.float32):
    torch._dynamo.reset()
    several = len(token_counts) > 1
    compiled = torch.compile(_read, fullgraph=True, dynamic=several, backend=backend)
    for n_tokens in token_counts:
        read = random_read(3, 2, n_tokens, 16, dtype=dtype)
        inputs = [x.requires_grad_() for x in (read.query_D, read.key_weight_D, *read.sources)]
        mix_D = compiled(*inputs, impl=impl)
        gradients = torch.autograd.grad(mix_D, inputs, read.upstream_D)
        expected = forward_backward(read, impl)
        tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        for actual, (name, value) in zip((mix_D, *gradients), expected.items(), strict=True):
            torch.testing.assert_close(
                actual, value, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def _read(query_D, key_weight_D, *sources, impl):
    return depth_attention(query_D, sources, key_weight_D, eps=1e-6, impl=impl)
