"""Coordinates: channels that ride along with a vector and say of which outputs it is made.

Output i, with the embedding as output 0, gets n more channels: zeros, and a one at place i. Every
weighted sum of such vectors has its weights in these channels. So a row of the depth mixing matrix
is what a read brings along, whatever the method, as long as it weighs vectors by scalars, and finds
these scalars in the first `dim` channels alone.
"""

import torch.nn.functional as F
from torch import Tensor

from attnres.residual.base import Residual, State, Ways


def with_coordinate(out_BTD: Tensor, i: int, n: int) -> Tensor:
    """Output i of n, [..., D + n]."""
    if not 0 <= i < n:
        raise ValueError(f"output must be from 0 to {n - 1}, got {i}")
    padded_BTD = F.pad(out_BTD, (0, n))
    padded_BTD[..., out_BTD.shape[-1] + i] = 1
    return padded_BTD


def row_of_read(
    residual: Residual[State], state: State, depth: int, dim: int
) -> tuple[Tensor, State]:
    """The coordinates of what is read at `depth`, [n, ...], and the state that goes on."""
    if depth == residual.n_sublayers:
        h_BTD = residual.finish(state)
    else:
        h_BTD, state = residual.read(state, depth)
    h_BTD = h_BTD.value_BTD if isinstance(h_BTD, Ways) else h_BTD
    return h_BTD[..., dim:].movedim(-1, 0), state
