"""ReZero and LayerScale: a learned factor on every sublayer's output.

    h_{l+1} = h_l + a_l f_l(h_l)                  ReZero, arXiv:2003.04887: one number a sublayer
    h_{l+1} = h_l + diag(g_l) f_l(h_l)            LayerScale, arXiv:2103.17239: one a channel

ReZero starts at a = 0; LayerScale at g = 0.1 up to 18 layers, 1e-5 up to 24 and 1e-6 beyond. Both
start as the identity, or nearly so, which is not the standard model: `init=1` is. ReZero's paper
has no norm in the branch; the sublayers here have theirs. LayerScale counts transformer layers,
two sublayers each; where attention and MLP are one sublayer, give `init`.

The factors have the learning rate of the model and no decay, which would pull them to a model
without sublayers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnres.layout import SUBLAYERS_PER_LAYER, check_count
from attnres.ops.border import check_finite
from attnres.residual.arithmetic import gain_of_width, wide
from attnres.residual.base import Output, Residual, Start, Traffic, check_depth, parts_of
from attnres.residual.coordinates import row_of_read

STARTS = ((18, 0.1), (24, 1e-5))  # up to so many layers; arXiv:2103.17239, section 3
DEEPEST_START = 1e-6


class ScaledBranches(Residual[Tensor]):
    """The state is the stream, BTD. Abstract: a method says how many factors a sublayer has."""

    def __init__(self, dim: int, n_sublayers: int, n_factors: int, init: float):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        check_finite("init", init)
        self.dim, self.n_sublayers, self.init = dim, n_sublayers, init
        empty = (torch.empty(n_factors) for _ in range(n_sublayers))
        self.factors = nn.ParameterList(nn.Parameter(factor) for factor in empty)
        self.reset_parameters()

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        check_depth(depth, self.n_sublayers - 1)
        return state, state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        check_depth(depth, self.n_sublayers - 1)
        factor_D = self.factors[depth]
        if factor_D.numel() > 1:
            factor_D = gain_of_width(factor_D, state.shape[-1], factor_D.mean())
        for part_BTD in parts_of(out_BTD, state, depth):
            state = (wide(state) + factor_D * wide(part_BTD)).to(state.dtype)
        return state

    def finish(self, state: Tensor) -> Tensor:
        return state

    def reset_parameters(self) -> None:
        for factor in self.factors:
            nn.init.constant_(factor, self.init)

    @property
    def starts_as(self) -> Start:
        return "standard" if self.init == 1 else "other"

    def stream(self, state: Tensor) -> Tensor:
        return state

    def mixing(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The factor of each output; the mean over channels where they have their own."""
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """As standard: factors are the same for every token."""
        check_depth(depth, self.n_sublayers - 1)
        return Traffic(n_read=2, n_written=1)


class ReZero(ScaledBranches):
    """One factor a sublayer.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        init: all factors at the start.

    Raises:
        ValueError: a size that is not positive, a start that is not finite.
    """

    def __init__(self, dim: int, n_sublayers: int, init: float = 0.0):
        super().__init__(dim, n_sublayers, 1, init)


class LayerScale(ScaledBranches):
    """One factor a channel of each sublayer.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        init: all factors at the start; None takes the paper's for this depth.

    Raises:
        ValueError: as `ReZero`.
    """

    def __init__(self, dim: int, n_sublayers: int, init: float | None = None):
        check_count("n_sublayers", n_sublayers)
        super().__init__(dim, n_sublayers, dim, start_for(n_sublayers) if init is None else init)


def start_for(n_sublayers: int) -> float:
    """LayerScale's factor at the start for so many sublayers, two a layer."""
    n_layers = n_sublayers / SUBLAYERS_PER_LAYER
    return next((start for most, start in STARTS if n_layers <= most), DEEPEST_START)


@dataclass(frozen=True, kw_only=True)
class ReZeroConfig:
    """`init=1` starts as the standard model."""

    init: float = 0.0

    def __post_init__(self):
        check_finite("init", self.init)

    def build(self, dim: int, n_sublayers: int) -> ReZero:
        return ReZero(dim, n_sublayers, self.init)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """Nothing: the factors are parameters."""
        return {}


@dataclass(frozen=True, kw_only=True)
class LayerScaleConfig:
    """`init=1` starts as the standard model; without it, the start is that of the paper."""

    init: float | None = None

    def __post_init__(self):
        if self.init is not None:
            check_finite("init", self.init)

    def build(self, dim: int, n_sublayers: int) -> LayerScale:
        return LayerScale(dim, n_sublayers, self.init)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """Nothing: the factors are parameters."""
        return {}
