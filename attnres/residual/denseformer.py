"""DenseFormer: after each transformer layer, a learned average over depth (arXiv:2402.02622).

    X_i = Y_{i-1} + (outputs of layer i),   Y_i = X_i + sum_{j<=i} a_ij X_j,   Y_0 = X_0 = embedding

X_i is what layer i gives, a cumulative state; layer i + 1 reads Y_i, and the final norm the last Y.
The paper writes the average as one weight a state, one for the newest and zero for the others at
the start. Here a_ij is what is added to that, zero at the start: the same function, with nothing
that a generic initialiser could spoil.

With dilation k layer i averages only over j = i, i - k, i - 2k, ...; with period p only after every
p-th layer (paper, section 3). It starts as the standard model. Weights are static. They train at
the model's learning rate and are not decayed: a decay pulls them to the standard residual.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres.layout import SUBLAYERS_PER_LAYER, check_count, check_layers
from attnres.residual.arithmetic import weighted_sum, wide
from attnres.residual.base import (
    Output,
    Residual,
    Start,
    Traffic,
    check_depth,
    check_sources,
    parts_of,
)
from attnres.residual.coordinates import row_of_read


class DenseFormerState(NamedTuple):
    """The states that later averages may read, and the one that goes on."""

    layers: tuple[Tensor, ...]  # X_0, the embedding, then X_i of every finished layer, each BTD
    stream_BTD: Tensor  # Y of the last finished layer and the outputs since


class DenseFormer(Residual[DenseFormerState]):
    """A weighted average of the states after the layers before.

    Args:
        dim: width of the hidden state.
        n_sublayers: residual branches in the model.
        dilation: only every so many-th state enters an average, counted back from the newest.
        period: there is an average after every so many layers.
        sublayers_per_layer: sublayers between two averages, since the paper averages after a whole
            transformer layer: 2, attention and MLP; 1 where both are one sublayer, or to average
            after each of the two.

    Raises:
        ValueError: what is no positive integer, or sublayers that do not fill the layers.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        dilation: int = 1,
        period: int = 1,
        sublayers_per_layer: int = SUBLAYERS_PER_LAYER,
    ):
        super().__init__()
        for name, value in {"dim": dim, "dilation": dilation, "period": period}.items():
            check_count(name, value)
        n_layers = check_layers(n_sublayers, sublayers_per_layer)
        self.dim, self.n_sublayers, self.sublayers_per_layer = dim, n_sublayers, sublayers_per_layer
        self.dilation, self.period = dilation, period
        averaged = range(period, n_layers + 1, period)
        self.averages = nn.ParameterList(  # a_ij of one i, oldest first
            nn.Parameter(torch.empty(1 + i // dilation)) for i in averaged
        )
        self.reset_parameters()

    def start(self, embed_BTD: Tensor) -> DenseFormerState:
        return DenseFormerState((embed_BTD,), embed_BTD)

    def read(self, state: DenseFormerState, depth: int) -> tuple[Tensor, DenseFormerState]:
        self._check(state, depth)
        return state.stream_BTD, state

    def write(self, state: DenseFormerState, depth: int, out_BTD: Output) -> DenseFormerState:
        self._check(state, depth)
        stream_BTD = state.stream_BTD
        for part_BTD in parts_of(out_BTD, stream_BTD, depth):
            stream_BTD = stream_BTD + part_BTD
        if (depth + 1) % self.sublayers_per_layer:
            return DenseFormerState(state.layers, stream_BTD)
        layers = (*state.layers, stream_BTD)
        return DenseFormerState(layers, self._averaged(layers))

    def finish(self, state: DenseFormerState) -> Tensor:
        return state.stream_BTD

    def reset_parameters(self) -> None:
        for average in self.averages:
            nn.init.zeros_(average)

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: DenseFormerState) -> Tensor:
        return state.stream_BTD

    def mixing(self, state: DenseFormerState, depth: int) -> tuple[Tensor, DenseFormerState]:
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """As the standard residual; an average reads the earlier states, and X and Y are kept."""
        check_depth(depth, self.n_sublayers - 1)
        layer, rest = divmod(depth + 1, self.sublayers_per_layer)
        if rest or layer % self.period:
            return Traffic(n_read=2, n_written=1)
        is_last = depth == self.n_sublayers - 1
        return Traffic(n_read=2 + layer // self.dilation, n_written=1 if is_last else 2)

    def _averaged(self, layers: tuple[Tensor, ...]) -> Tensor:
        layer = len(layers) - 1
        if layer % self.period:
            return layers[-1]
        chosen = layers[layer % self.dilation :: self.dilation]
        added_J = wide(self.averages[layer // self.period - 1])
        weights = (*added_J[:-1], 1 + added_J[-1])
        return weighted_sum(weights, chosen).to(layers[-1].dtype)

    def _check(self, state: DenseFormerState, depth: int) -> None:
        check_depth(depth, self.n_sublayers - 1)
        check_sources(len(state.layers), 1 + depth // self.sublayers_per_layer, depth)


@dataclass(frozen=True, kw_only=True)
class DenseFormerConfig:
    """Arguments as in `DenseFormer`; dilation 4 and period 5 are what the paper takes for speed."""

    dilation: int = 1
    period: int = 1
    sublayers_per_layer: int = SUBLAYERS_PER_LAYER

    def __post_init__(self):
        for name in ("dilation", "period", "sublayers_per_layer"):
            check_count(name, getattr(self, name))

    def build(self, dim: int, n_sublayers: int) -> DenseFormer:
        return DenseFormer(dim, n_sublayers, self.dilation, self.period, self.sublayers_per_layer)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {
            "dilation": self.dilation,
            "period": self.period,
            "sublayers_per_layer": self.sublayers_per_layer,
        }
