"""Kimi Delta Attention (arXiv:2510.26692): a state decays by channel and is corrected by token.

    state  = exp(decay_t) * state                                decay_t <= 0, one a channel
    state += key_t (strength_t (value_t - key_t . state))
    out_t  = query_t . state

`kda_by_token` is this recurrence, the definition. `kda` computes the same in chunks of tokens. With
G the running sum of the decays in a chunk, the pairs of its tokens meet as

    A[i, j] = strength_i sum_K key_i key_j exp(G_i - G_j), j < i

and W, U = (1 + A)^-1 strength [exp(G) key, value] give what each token writes, U - W state. No
number above 0 is ever an exponent: a chunk is halved again and again, and a token of a later half
and one of an earlier half each decay to the border between them.

B batch, T tokens, H heads, K width of query and key, P width of value, C tokens of a chunk,
N chunks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 64
GROUP_NUMBERS = 2**18  # of the queries that are computed at once: a megabyte, and few small steps
LOWER_BOUND = -5.0  # of the decay of a token in Kimi K3 (arXiv:2607.24653)


def kda_by_token(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHP: Tensor,
    decay_BTHK: Tensor,
    strength_BTH: Tensor,
    state_BHKP: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output BTHP and the last state, token by token; see `kda`."""
    query_BTHK, key_BTHK, value_BTHP, decay_BTHK, strength_BTH, state_BHKP = _prepared(
        query_BTHK, key_BTHK, value_BTHP, decay_BTHK, strength_BTH, state_BHKP
    )
    outs = []
    for t in range(query_BTHK.shape[1]):
        state_BHKP = state_BHKP * decay_BTHK[:, t].exp()[..., None]
        found_BHP = torch.einsum("bhk,bhkp->bhp", key_BTHK[:, t], state_BHKP)
        written_BHP = strength_BTH[:, t, :, None] * (value_BTHP[:, t] - found_BHP)
        state_BHKP = state_BHKP + key_BTHK[:, t, :, :, None] * written_BHP[..., None, :]
        outs.append(torch.einsum("bhk,bhkp->bhp", query_BTHK[:, t], state_BHKP))
    return torch.stack(outs, dim=1) if outs else torch.zeros_like(value_BTHP), state_BHKP


def kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHP: Tensor,
    decay_BTHK: Tensor,
    strength_BTH: Tensor,
    state_BHKP: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same as `kda_by_token`, in chunks; for the backward a chunk is computed again.

    Args:
        query_BTHK: normalised and scaled as the caller wants it.
        key_BTHK: of norm 1 at most, or the state may grow.
        decay_BTHK: logarithm of what a token leaves of the state, at most 0.
        strength_BTH: of the correction, from 0 to 1.
        state_BHKP: that was left by the tokens before; zeros where it is None.

    Returns:
        Output BTHP and the last state, both in float32, or float64 where an input is.
    """
    inputs = _prepared(query_BTHK, key_BTHK, value_BTHP, decay_BTHK, strength_BTH, state_BHKP)
    *by_token, state_BHKP = inputs
    n_tokens = query_BTHK.shape[1]
    if n_tokens == 0:
        return by_token[2], state_BHKP
    size = min(CHUNK_TOKENS, 1 << (n_tokens - 1).bit_length())
    n_chunks = max(1, GROUP_NUMBERS // max(1, size * by_token[0][:, 0].numel()))
    with torch.autocast(query_BTHK.device.type, enabled=False):
        outs = []
        for parts in zip(*(_groups(x, size, n_chunks) for x in by_token), strict=True):
            out_BHTP, state_BHKP = _once_more_for_the_backward(*parts, state_BHKP)
            outs.append(out_BHTP)
    out_BTHP = torch.cat(outs, dim=2).transpose(1, 2)[:, :n_tokens]
    return out_BTHP, state_BHKP


def decay_of_gate(
    gate_BTHK: Tensor, log_rate_H: Tensor, lower_bound: float | None = None
) -> Tensor:
    """The decay of raw gates: -exp(log_rate) softplus(gate), or bounded, as Kimi K3 has it.

    Args:
        lower_bound: the decay is lower_bound * sigmoid(exp(log_rate) gate): `LOWER_BOUND` in K3.
    """
    gate_BTHK, rate_H1 = gate_BTHK.float(), log_rate_H.float().exp()[:, None]
    if lower_bound is None:
        return -rate_H1 * F.softplus(gate_BTHK)
    return lower_bound * torch.sigmoid(rate_H1 * gate_BTHK)


def unit_norm(x_K: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis, in float32 at least; epsilon is FLA's."""
    x_K = x_K.to(torch.promote_types(x_K.dtype, torch.float32))
    return x_K * (x_K.square().sum(-1, keepdim=True) + eps).rsqrt()


def _prepared(*tensors: Tensor | None) -> list[Tensor]:
    """All in one dtype, and a state of zeros where there is none."""
    query_BTHK, _, value_BTHP, *_, state_BHKP = tensors
    assert query_BTHK is not None
    assert value_BTHP is not None
    dtype = torch.float32
    for x in tensors:
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    if state_BHKP is None:
        batch, _, heads, width = query_BTHK.shape
        state_BHKP = query_BTHK.new_zeros(batch, heads, width, value_BTHP.shape[-1])
    return [x.to(dtype) for x in (*tensors[:-1], state_BHKP) if x is not None]


def _groups(x_BTH: Tensor, size: int, n_chunks: int) -> tuple[Tensor, ...]:
    """Some chunks together, [B, H, N, C, ...]; the last is filled up by zeros, which do nothing."""
    x_BHT = x_BTH.transpose(1, 2)
    missing = -x_BHT.shape[2] % size
    if missing:
        x_BHT = F.pad(x_BHT, (0, 0) * (x_BHT.ndim - 3) + (0, missing))
    return x_BHT.unflatten(2, (-1, size)).split(n_chunks, dim=2)


def _once_more_for_the_backward(*parts: Tensor) -> tuple[Tensor, Tensor]:
    if not torch.is_grad_enabled():
        return _group(*parts)
    return checkpoint(_group, *parts, use_reentrant=False, preserve_rng_state=False)


def _group(
    query_BHNCK: Tensor,
    key_BHNCK: Tensor,
    value_BHNCP: Tensor,
    decay_BHNCK: Tensor,
    strength_BHNC: Tensor,
    state_BHKP: Tensor,
) -> tuple[Tensor, Tensor]:
    """What chunks have of their own, for all at once, and then the state through them."""
    attention, overlap, since, until = _pairs(query_BHNCK, key_BHNCK, decay_BHNCK)
    strength_BHNC1 = strength_BHNC[..., None]
    kept_BHNCK = since.exp()
    right = torch.cat([key_BHNCK * kept_BHNCK, value_BHNCP], dim=-1) * strength_BHNC1
    solved = torch.linalg.solve_triangular(
        overlap * strength_BHNC1, right, upper=False, unitriangular=True
    )
    erased, own = solved.split([key_BHNCK.shape[-1], value_BHNCP.shape[-1]], dim=-1)
    asked = query_BHNCK * kept_BHNCK
    left = kept_BHNCK[..., -1, :, None]
    offered = (key_BHNCK * until.exp()).transpose(-1, -2)
    outs = []
    chunks = (x.unbind(2) for x in (erased, own, asked, attention, left, offered))
    for erased_CK, own_CP, asked_CK, attention_CC, left_K1, offered_KC in zip(*chunks, strict=True):
        written_CP = own_CP - erased_CK @ state_BHKP
        outs.append(asked_CK @ state_BHKP + attention_CC @ written_CP)
        state_BHKP = state_BHKP * left_K1 + offered_KC @ written_CP
    return torch.cat(outs, dim=2), state_BHKP


def _pairs(
    query_CK: Tensor, key_CK: Tensor, decay_CK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sum_K x_i key_j exp(G_i - G_j): for queries (j <= i) and keys (j < i), CC each.

    Also the sums of the decays of each token and all before it, and of all after it, CK. Segments
    of S = 1, 2, 4, ... tokens are joined by twos, M pairs at a time: [..., M, 2, S, K].
    """
    since, until = decay_CK[..., None, :], torch.zeros_like(decay_CK)[..., None, :]
    attention = (query_CK * key_CK).sum(-1)[..., None, None]
    overlap = torch.zeros_like(attention)
    while since.shape[-3] > 1:
        size = since.shape[-2]
        pairs = (since.shape[-3] // 2, 2, size)
        query_1 = query_CK.unflatten(-2, pairs)[..., 1, :, :]
        key_0, key_1 = key_CK.unflatten(-2, pairs).unbind(-3)
        (since_0, since_1), (until_0, until_1) = _halves(since), _halves(until)
        later = since_1.exp()
        rows = torch.cat([query_1 * later, key_1 * later], dim=-2)
        met = rows @ (key_0 * until_0.exp()).transpose(-1, -2)
        attention = _joined(attention, met[..., :size, :])
        overlap = _joined(overlap, met[..., size:, :])
        since = torch.cat([since_0, since_1 + since_0[..., -1:, :]], dim=-2)
        until = torch.cat([until_0 + since_1[..., -1:, :], until_1], dim=-2)
    return attention[..., 0, :, :], overlap[..., 0, :, :], since[..., 0, :, :], until[..., 0, :, :]


def _halves(x_NSK: Tensor) -> tuple[Tensor, ...]:
    """Of each pair of neighbours the first, and the second."""
    return x_NSK.unflatten(-3, (-1, 2)).unbind(-3)


def _joined(triangle_NSS: Tensor, below_MSS: Tensor) -> Tensor:
    """Twice as large triangles: two of before on the diagonal, and what is below."""
    first, second = _halves(triangle_NSS)
    above = torch.zeros_like(below_MSS)
    return torch.cat(
        [torch.cat([first, above], dim=-1), torch.cat([below_MSS, second], dim=-1)], dim=-2
    )
