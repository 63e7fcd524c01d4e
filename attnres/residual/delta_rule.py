"""Deep Delta Learning: a sublayer's output says where to write, not what (arXiv:2601.00417).

    h_{l+1} = h_l + beta_l (v_l - k_l . h_l) k_l       k_l = f_l(h_l) / |f_l(h_l)|

The part of the stream along k is replaced by v for beta = 1, kept for 0 and mirrored beyond, up to
beta = 2. This is the form for values of one number (d_v = 1), with k from the sublayer's output, as
the authors' code has it:

    beta = 2 sigmoid(w . h_l / rms(h_l) + b)            v = 4 sigmoid(w' . h_l + b')

beta starts at 1. Left open, and chosen here: w, w', b' start at zero, so that every token starts
with beta = 1 and v = 2; the norm has no gain, which would be a factor of w. The paper's values of
more numbers need streams and short convolutions of their own and are left out.

For no parameters is this the standard model: the size of an output is lost. Nothing decays, or
gates would be pulled to the start.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnres.layout import check_count
from attnres.ops.border import check_eps
from attnres.residual.arithmetic import project, rms_normed, wide
from attnres.residual.base import Output, Residual, Traffic, check_depth, whole

MOST_BETA = 2.0
MOST_VALUE = 4.0  # as in the authors' code
KEY_EPS = 1e-10  # over |f|^2; as there


class Scalars(nn.Module):
    """The gate and the value of one sublayer."""

    def __init__(self, dim: int):
        super().__init__()
        self.gate_weight = nn.Parameter(torch.empty(dim, 1))
        self.gate_bias = nn.Parameter(torch.empty(1))
        self.value_weight = nn.Parameter(torch.empty(dim, 1))
        self.value_bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, h_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """beta and v of every token, each [..., 1]."""
        gate = project(rms_normed(h_D, eps), self.gate_weight) + self.gate_bias
        value = project(h_D, self.value_weight) + self.value_bias
        return MOST_BETA * torch.sigmoid(gate), MOST_VALUE * torch.sigmoid(value)


class DeltaRule(Residual[Tensor]):
    """The state is the stream, BTD. It has no mixing matrix of scalars: 1 - beta k k^T turns it.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        eps: RMSNorm epsilon of what the gate reads.

    Raises:
        ValueError: a size that is not positive, an epsilon that is negative or not finite.
    """

    def __init__(self, dim: int, n_sublayers: int, eps: float = 1e-6):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        check_eps(eps)
        self.dim, self.n_sublayers, self.eps = dim, n_sublayers, eps
        self.scalars = nn.ModuleList(Scalars(dim) for _ in range(n_sublayers))

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        check_depth(depth, self.n_sublayers - 1)
        return state, state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        check_depth(depth, self.n_sublayers - 1)
        out_BTD = wide(whole(out_BTD, state, depth))
        key_BTD = out_BTD * torch.rsqrt(out_BTD.square().sum(-1, keepdim=True) + KEY_EPS)
        beta_BT1, value_BT1 = self.scalars[depth](state, self.eps)
        h_BTD = wide(state)
        along_BT1 = (key_BTD * h_BTD).sum(-1, keepdim=True)
        return (h_BTD + beta_BT1 * (value_BT1 - along_BT1) * key_BTD).to(state.dtype)

    def finish(self, state: Tensor) -> Tensor:
        return state

    def reset_parameters(self) -> None:
        for scalars in self.scalars:
            cast(Scalars, scalars).reset_parameters()

    def stream(self, state: Tensor) -> Tensor:
        return state

    def traffic(self, depth: int) -> Traffic:
        """As standard: what is found along k is found while stream and output are in registers."""
        check_depth(depth, self.n_sublayers - 1)
        return Traffic(n_read=2, n_written=1)


@dataclass(frozen=True, kw_only=True)
class DeltaRuleConfig:
    """Deep Delta Learning with values of one number."""

    eps: float = 1e-6

    def __post_init__(self):
        check_eps(self.eps)

    def build(self, dim: int, n_sublayers: int) -> DeltaRule:
        return DeltaRule(dim, n_sublayers, self.eps)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"eps": self.eps}
