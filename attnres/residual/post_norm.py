"""Norms on the stream: DeepNorm and KEEL.

    h_{l+1} = norm(alpha h_l + f_l(h_l))          DeepNorm, arXiv:2203.00555
    h_{l+1} = norm(alpha h_l + f_l(norm(h_l)))    KEEL, arXiv:2601.19895

norm is RMSNorm with a gain, as in the models whose sublayers are joined here. These sublayers have
an input norm of their own, so KEEL is written as it is, while DeepNorm gets a second norm in the
branch, of a stream whose size is 1 already. A model's final norm comes after the last one here.

DeepNorm has alpha = (2 n_layers)^(1/4), that is n_sublayers^(1/4) with two sublayers a layer, and
divides weights of the branches at the start by (8 n_layers)^(1/4). That last part is left out:
which weights (values, output projections, MLPs) is a matter of a family's names, which a residual
does not know.

KEEL's alpha is a setting here, by default the number of sublayers; the first transformer layer
stays without norms on its stream, as two sublayers (`n_plain`). Both defaults follow a summary of
the paper, not its text.

Neither starts as the standard model. Gains start at 1 and are not decayed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnres.layout import check_count
from attnres.ops.border import check_eps, check_finite
from attnres.residual.arithmetic import gain_of_width, wide
from attnres.residual.base import Output, Residual, Traffic, check_depth, whole
from attnres.residual.coordinates import row_of_read


class PostNorm(Residual[Tensor]):
    """The state is the stream, BTD, after the last norm.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        alpha: factor of the stream.
        n_plain: so many sublayers at the front are added as in the standard residual, without a
            factor and a norm.
        eps: RMSNorm epsilon.

    Raises:
        ValueError: a size that is not positive, an alpha that is not positive, an `n_plain` that
            is not from 0 to `n_sublayers`, an epsilon that is negative or not finite.
    """

    def __init__(
        self, dim: int, n_sublayers: int, alpha: float, n_plain: int = 0, eps: float = 1e-6
    ):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        _check_settings(alpha, n_plain, eps)
        if n_plain > n_sublayers:
            raise ValueError(f"n_plain must be from 0 to {n_sublayers}, got {n_plain}")
        self.dim, self.n_sublayers = dim, n_sublayers
        self.alpha, self.n_plain, self.eps = alpha, n_plain, eps
        empty = (torch.empty(dim) for _ in range(n_sublayers - n_plain))
        self.gains = nn.ParameterList(nn.Parameter(gain_D) for gain_D in empty)
        self.reset_parameters()

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        check_depth(depth, self.n_sublayers - 1)
        return state, state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        check_depth(depth, self.n_sublayers - 1)
        out_BTD = whole(out_BTD, state, depth)
        if depth < self.n_plain:
            return state + out_BTD
        sum_BTD = self.alpha * wide(state) + wide(out_BTD)
        mean_square_BT1 = sum_BTD[..., : self.dim].square().mean(-1, keepdim=True)
        gain_D = gain_of_width(self.gains[depth - self.n_plain], state.shape[-1])
        return (sum_BTD * torch.rsqrt(mean_square_BT1 + self.eps) * gain_D).to(state.dtype)

    def finish(self, state: Tensor) -> Tensor:
        return state

    def reset_parameters(self) -> None:
        for gain_D in self.gains:
            nn.init.ones_(gain_D)

    def stream(self, state: Tensor) -> Tensor:
        return state

    def mixing(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The mean over channels: scalars of the token times the mean of a product of gains."""
        row_L, state = row_of_read(self, state, depth, self.dim)
        product_D, gains = row_L.new_ones(self.dim), []
        for written in reversed(range(depth)):  # output i passes the norms from depth i - 1 on
            if written >= self.n_plain:
                product_D = product_D * self.gains[written - self.n_plain]
            gains.insert(0, product_D.mean())
        first = gains[:1] or [product_D.mean()]  # the embedding passes the same norms as output 1
        gain_L = torch.stack([*first, *gains]).to(row_L.dtype)
        gain_L = F.pad(gain_L, (0, len(row_L) - len(gain_L)))
        return torch.einsum("l,l...->l...", gain_L, row_L), state

    def traffic(self, depth: int) -> Traffic:
        """As standard: the norm is of a vector that is in registers."""
        check_depth(depth, self.n_sublayers - 1)
        return Traffic(n_read=2, n_written=1)


@dataclass(frozen=True, kw_only=True)
class DeepNormConfig:
    """Without `alpha`, that of the paper for a decoder: n_sublayers^(1/4)."""

    alpha: float | None = None
    eps: float = 1e-6

    def __post_init__(self):
        _check_settings(1 if self.alpha is None else self.alpha, 0, self.eps)

    def build(self, dim: int, n_sublayers: int) -> PostNorm:
        return PostNorm(dim, n_sublayers, self.alpha_for(n_sublayers), eps=self.eps)

    def alpha_for(self, n_sublayers: int) -> float:
        check_count("n_sublayers", n_sublayers)
        return n_sublayers**0.25 if self.alpha is None else self.alpha

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"alpha": self.alpha_for(n_sublayers), "eps": self.eps}


@dataclass(frozen=True, kw_only=True)
class KeelConfig:
    """Without `alpha`, the number of sublayers; the first `n_plain` sublayers stay PreNorm."""

    alpha: float | None = None
    n_plain: int = 2  # sublayers: one transformer layer
    eps: float = 1e-6

    def __post_init__(self):
        _check_settings(1 if self.alpha is None else self.alpha, self.n_plain, self.eps)

    def build(self, dim: int, n_sublayers: int) -> PostNorm:
        return PostNorm(dim, n_sublayers, self.alpha_for(n_sublayers), self.n_plain, self.eps)

    def alpha_for(self, n_sublayers: int) -> float:
        check_count("n_sublayers", n_sublayers)
        return float(n_sublayers) if self.alpha is None else self.alpha

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        alpha = self.alpha_for(n_sublayers)
        return {"alpha": alpha, "n_plain": self.n_plain, "eps": self.eps}


def _check_settings(alpha: object, n_plain: object, eps: float) -> None:
    check_finite("alpha", alpha)
    if not float(alpha) > 0:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"alpha must be positive, got {alpha!r}")
    if isinstance(n_plain, bool) or not isinstance(n_plain, int) or n_plain < 0:
        raise ValueError(f"n_plain must be a number of sublayers from 0 on, got {n_plain!r}")
    check_eps(eps)
