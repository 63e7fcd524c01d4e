"""Delta attention in chunks is its recurrence, whatever the decays, in outputs and gradients."""

import math
from typing import NamedTuple

import pytest
import torch
from error_budget import assert_as_good_as
from torch import Tensor

from attnres.ops.kda import CHUNK_TOKENS, LOWER_BOUND, decay_of_gate, kda, kda_by_token, unit_norm

NAMES = ("query", "key", "value", "decay", "strength", "state")
SHAPES = {  # B, T, H, K, P
    "one token": (2, 1, 1, 8, 8),
    "part of a chunk": (1, 37, 2, 12, 5),
    "whole chunks": (1, 2 * CHUNK_TOKENS, 1, 16, 16),
    "a token more": (2, CHUNK_TOKENS + 1, 3, 7, 9),
}
DECAYS = {"mild": 0.02, "as at the start": 1.0, "to nothing": 40.0}  # nats a token, about


class Inputs(NamedTuple):
    query_BTHK: Tensor
    key_BTHK: Tensor
    value_BTHP: Tensor
    decay_BTHK: Tensor
    strength_BTH: Tensor
    state_BHKP: Tensor


def inputs(shape: tuple[int, ...], nats: float, dtype: torch.dtype = torch.float64) -> Inputs:
    """Decays from nothing to many times `nats` side by side."""
    B, T, H, K, P = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    made = Inputs(
        query_BTHK=unit_norm(normal(B, T, H, K)) / math.sqrt(K),
        key_BTHK=unit_norm(normal(B, T, H, K)),
        value_BTHP=normal(B, T, H, P),
        decay_BTHK=-nats * normal(B, T, H, K).exp(),
        strength_BTH=normal(B, T, H).sigmoid(),
        state_BHKP=normal(B, H, K, P) / 4,
    )
    return Inputs(*[x.to(dtype) for x in made])


def forward_backward(function, given: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, last state and the gradient of every input."""
    leaves = [x.to(dtype).requires_grad_() for x in given]
    out_BTHP, state_BHKP = function(*leaves)
    weight = torch.linspace(-1, 1, out_BTHP.numel(), dtype=dtype).view_as(out_BTHP)
    loss = (out_BTHP * weight).sum() + state_BHKP.square().sum()
    gradients = torch.autograd.grad(loss, leaves)
    found = {"out": out_BTHP.detach(), "last state": state_BHKP.detach()}
    return found | dict(zip(NAMES, gradients, strict=True))


def kda_in_one_chunk(query, key, value, decay, strength, state):
    """The equations of a chunk as they stand, all pairs at once, for the rounding they bring.

    The gradient of the state is a difference of terms larger than itself, which it is not token by
    token.
    """
    query, key, value, decay, strength = (
        x.transpose(1, 2) for x in (query, key, value, decay, strength)
    )
    since = decay.cumsum(-2)
    exponent = since[..., :, None, :] - since[..., None, :, :]
    is_later = torch.ones(exponent.shape[-3:-1], dtype=torch.bool).tril()[..., None]
    pairs = exponent.masked_fill(~is_later, -math.inf).exp()
    attention, overlap = (
        torch.einsum("...ik,...jk,...ijk->...ij", x, key, pairs) for x in (query, key)
    )
    right = torch.cat([since.exp() * key, value], dim=-1) * strength[..., None]
    solved = torch.linalg.solve_triangular(
        (overlap * strength[..., None]).tril(-1), right, upper=False, unitriangular=True
    )
    written = solved[..., key.shape[-1] :] - solved[..., : key.shape[-1]] @ state
    out = (since.exp() * query) @ state + attention @ written
    left = since[..., -1:, :]
    state = state * left.exp().mT + (key * (left - since).exp()).mT @ written
    return out.transpose(1, 2), state


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nats", DECAYS)
def test_chunks_are_the_recurrence_and_as_precise(shape, nats):
    given = inputs(SHAPES[shape], DECAYS[nats], torch.float32)
    exact = forward_backward(kda_by_token, given, torch.float64)
    references = [
        forward_backward(function, given, torch.float32)
        for function in (kda_by_token, kda_in_one_chunk)
    ]
    actual = forward_backward(kda, given, torch.float32)
    for name, value in exact.items():
        plain = max((found[name] for found in references), key=lambda x: (x - value).abs().max())
        assert_as_good_as(actual[name], plain, value, name)
    again = forward_backward(kda, given, torch.float64)
    for name, value in exact.items():
        error = (again[name] - value).abs().max()
        assert error <= 1e-13 * value.abs().max().clamp(min=1e-3), f"{name}: {error:.1e}"


def test_the_recurrence_is_one_rank_of_a_matrix_a_token():
    """S = (1 - strength k k^T) diag(exp decay) S + strength k v^T, and the state is read last."""
    q, k, v, g, b, state_KP = (x[0] for x in inputs((1, 5, 1, 4, 3), 0.3))
    state_KP = state_KP[0]
    out_BTHP, last_BHKP = kda_by_token(*inputs((1, 5, 1, 4, 3), 0.3))
    for t in range(5):
        kept_KP = g[t, 0].exp().diag() @ state_KP
        erased_KP = torch.eye(4, dtype=torch.float64) - b[t, 0] * torch.outer(k[t, 0], k[t, 0])
        state_KP = erased_KP @ kept_KP + b[t, 0] * torch.outer(k[t, 0], v[t, 0])
        torch.testing.assert_close(out_BTHP[0, t, 0], q[t, 0] @ state_KP, rtol=0, atol=1e-14)
    torch.testing.assert_close(last_BHKP[0, 0], state_KP, rtol=0, atol=1e-14)


def part(given: Inputs, which: slice) -> list[Tensor]:
    """Some tokens of all but the state."""
    return [x[:, which] for x in given[:-1]]


@pytest.mark.parametrize("n_first", [1, 37, 64, 100])
def test_chunks_hand_over_to_chunks_and_to_tokens(n_first):
    given = inputs((2, 130, 2, 8, 6), 1.0)
    whole_BTHP, last_BHKP = kda(*given)
    first_BTHP, state_BHKP = kda(*part(given, slice(n_first)), state_BHKP=given.state_BHKP)
    for function in (kda, kda_by_token):
        rest_BTHP, end_BHKP = function(*part(given, slice(n_first, None)), state_BHKP=state_BHKP)
        torch.testing.assert_close(
            torch.cat([first_BTHP, rest_BTHP], dim=1), whole_BTHP, rtol=0, atol=1e-13
        )
        torch.testing.assert_close(end_BHKP, last_BHKP, rtol=0, atol=1e-13)


def test_gradients_are_those_of_differences():
    leaves = [x.requires_grad_() for x in inputs((1, 6, 2, 3, 2), 0.7)]
    assert torch.autograd.gradcheck(kda, leaves)
    assert torch.autograd.gradcheck(kda_by_token, leaves)


def test_a_decay_to_nothing_leaves_finite_gradients():
    given = inputs((1, 70, 1, 8, 8), 1.0, torch.float32)
    dead = given._replace(decay_BTHK=torch.full_like(given.decay_BTHK, -500.0))
    for name, value in forward_backward(kda, dead, torch.float32).items():
        assert value.isfinite().all(), name


def test_no_exponent_is_above_zero(monkeypatch):
    given, found, exp = inputs((1, 130, 2, 8, 8), 20.0), [], torch.Tensor.exp

    def watched(x):
        found.append(x.max().item())
        return exp(x)

    monkeypatch.setattr(torch.Tensor, "exp", watched)
    with torch.no_grad():
        kda(*given)
    assert len(found) > 10
    assert max(found) <= 0


def test_no_tokens_leave_the_state_as_it_is():
    given = inputs((2, 0, 3, 4, 5), 1.0)
    for function in (kda, kda_by_token):
        out_BTHP, state_BHKP = function(*given)
        assert out_BTHP.shape == (2, 0, 3, 5)
        assert torch.equal(state_BHKP, given.state_BHKP)


def test_a_state_that_is_not_given_is_zero():
    given = inputs((1, 9, 2, 4, 5), 1.0)
    zero = given._replace(state_BHKP=torch.zeros_like(given.state_BHKP))
    for function in (kda, kda_by_token):
        for actual, expected in zip(function(*[*given][:-1]), function(*zero), strict=True):
            assert torch.equal(actual, expected)


def test_autocast_changes_nothing_and_low_precision_is_computed_in_float32():
    given = inputs((1, 70, 1, 8, 8), 1.0, torch.bfloat16)
    expected = kda(*(x.float() for x in given))
    for is_on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            for actual, value in zip(kda(*given), expected, strict=True):
                assert actual.dtype == torch.float32
                assert torch.equal(actual, value)


def test_what_the_backward_keeps_does_not_grow_with_the_tokens_of_a_chunk():
    """Inputs and a state a chunk: less than a tenth of what all pairs of a chunk would take."""
    given = inputs((1, 4 * CHUNK_TOKENS, 2, 16, 16), 1.0, torch.float32)
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kda(*(x.requires_grad_() for x in given))
    pairs_bytes = 4 * 4 * CHUNK_TOKENS * 2 * CHUNK_TOKENS * 16
    assert sum(storage.nbytes() for storage in kept.values()) < pairs_bytes / 10


@pytest.mark.slow
def test_compiled_is_eager():
    given = inputs((1, 70, 2, 8, 8), 1.0, torch.float32)
    compiled = torch.compile(kda, fullgraph=True, backend="aot_eager")
    expected = forward_backward(kda, given, torch.float32)
    for name, value in forward_backward(compiled, given, torch.float32).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_gate_gives_a_decay_and_a_bounded_one_has_a_bound():
    gate_BTHK = torch.linspace(-60, 60, 24).view(1, 4, 2, 3)
    log_rate_H = torch.tensor([0.0, 2.0])
    rate_H1 = log_rate_H.exp()[:, None]
    free_BTHK = decay_of_gate(gate_BTHK, log_rate_H)
    expected = -rate_H1 * torch.logaddexp(gate_BTHK, torch.zeros(()))
    torch.testing.assert_close(free_BTHK, expected)
    bounded_BTHK = decay_of_gate(gate_BTHK, log_rate_H, LOWER_BOUND)
    assert bounded_BTHK.max() <= 0
    assert bounded_BTHK.min() >= LOWER_BOUND
    assert bounded_BTHK[0, 2, 0, 0] == LOWER_BOUND * torch.sigmoid(gate_BTHK[0, 2, 0, 0])
