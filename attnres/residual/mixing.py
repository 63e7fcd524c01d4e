"""The depth mixing matrix of a residual method: which outputs a read is made of, and how much.

    h_l = sum_{i<l} M[l, i] v_i                                arXiv:2603.15031, section 6

v_0 is the embedding, v_i the output of the i-th sublayer, so that row 0 is the read of the first
sublayer and has one weight; the last row is the output read. Weights depend on what was written and
on nothing else, so the outputs of one run of a model are enough to find them.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.residual.base import Output, Parts, Residual
from attnres.residual.coordinates import with_coordinate

RANK_TOLERANCE = 1e-9  # of the largest singular value; float64 leaves 1e-15 of noise


@torch.no_grad()
def mixing_matrix(residual: Residual[Any], outputs: Sequence[Output]) -> Tensor:
    """M of every token, [L+1, L+1, ...]: row by reader, column by output, in float64.

    Args:
        residual: the method; a copy of it in float64 is used.
        outputs: the embedding, then the output of every sublayer, each [..., D].

    Raises:
        ValueError: outputs of another number than L + 1.
        NotImplementedError: a method that has no such matrix, with the reason.
    """
    n = residual.n_sublayers + 1
    if len(outputs) != n:
        raise ValueError(f"{n} outputs, the embedding first, were expected, got {len(outputs)}")
    exact = copy.deepcopy(residual).double()
    first, *others = (with_coordinate(_whole(out), i, n) for i, out in enumerate(outputs))
    state = exact.start(first)
    rows = []
    for depth in range(n):
        row, state = exact.mixing(state, depth)
        rows.append(row)
        if others:
            state = exact.write(state, depth, others.pop(0))
    return torch.stack(rows)


def _whole(out: Output) -> Tensor:
    parts = out if isinstance(out, Parts) else (out,)
    return torch.stack([part_BTD.double() for part_BTD in parts]).sum(dim=0)


@contextmanager
def recorded_outputs(residual: Residual[Any]) -> Iterator[list[Output]]:
    """The embedding and every output that is written while the context is open."""
    outputs: list[Output] = []
    start, write = residual.start, residual.write

    def recording_start(embed_BTD: Tensor) -> Any:
        outputs[:] = [embed_BTD.detach()]
        return start(embed_BTD)

    def recording_write(state: Any, depth: int, out_BTD: Output) -> Any:
        is_whole = isinstance(out_BTD, Tensor)
        outputs.append(out_BTD.detach() if is_whole else Parts(*(p.detach() for p in out_BTD)))
        return write(state, depth, out_BTD)

    residual.start, residual.write = recording_start, recording_write
    try:
        yield outputs
    finally:
        del residual.start, residual.write


class Summary(NamedTuple):
    """What a mixing matrix says in numbers; shares are |M| over the sum of its row."""

    rank: int  # off-diagonal, of the sublayers' own L x L
    row_sums: list[float]  # by reader
    entropy: list[float]  # of the shares by reader, nats
    reach: list[float]  # outputs back from the newest, mean by shares, by reader
    sink: int  # the output with the largest mean share over the reads that could choose it
    sink_share: float  # its mean share


def summary(mixing: Tensor) -> Summary:
    """Means over tokens of M [L+1, L+1, ...], and the rank of the first token's."""
    mixing_RLT = mixing.flatten(2) if mixing.dim() > 2 else mixing.unsqueeze(-1)
    size_RLT = mixing_RLT.abs()
    share_RLT = size_RLT / size_RLT.sum(dim=1, keepdim=True).clamp(min=1e-30)
    depth_L = torch.arange(len(mixing), device=mixing.device)
    age_RL = depth_L.unsqueeze(1) - depth_L
    reach_RT = (share_RLT * age_RL.clamp(min=0).unsqueeze(-1)).sum(dim=1)
    sink_share_L = _column_means(share_RLT.mean(dim=-1))
    return Summary(
        rank=off_diagonal_rank(mixing_RLT[:-1, :-1, 0]),
        row_sums=mixing_RLT.sum(dim=1).mean(dim=-1).tolist(),
        entropy=torch.special.entr(share_RLT).sum(dim=1).mean(dim=-1).tolist(),
        reach=reach_RT.mean(dim=-1).tolist(),
        sink=int(sink_share_L.argmax()),
        sink_share=sink_share_L.max().item(),
    )


def _column_means(share_RL: Tensor) -> Tensor:
    """Over the readers that could read each output and at least one newer; 0 where there is none.

    The newest output is read most by nearly every method, and says nothing of a sink.
    """
    n = len(share_RL)
    means = [share_RL[i + 1 :, i].mean() for i in range(n - 1)]
    return torch.stack([*means, share_RL.new_zeros(())])


def off_diagonal_rank(mixing_LL: Tensor) -> int:
    """Largest rank of reads from p on and outputs before p: what a recurrence over depth carries.

    Row r reads outputs 0 to r, so that reads from p on begin with row p - 1.
    """
    blocks = (mixing_LL[p - 1 :, :p] for p in range(1, len(mixing_LL) + 1))
    return max(int(torch.linalg.matrix_rank(x.double(), rtol=RANK_TOLERANCE)) for x in blocks)
