"""MUDDFormer: after each transformer layer, an average over depth by each token (arXiv:2502.12170).

    A^c_i = GELU(RMSNorm(X_i) W1) W2^c + a^c_i + (one for X_i),   Y^c_i = sum_{j<=i} A^c_ij X_j

X_i are the cumulative states of `DenseFormer`, the norm has no gain, and c runs over the ways: the
input of the next layer's query, key and value, and R, its stream; or R alone. The last layer has R
alone. There is no average of the embedding by itself, so the first attention has one input.

The paper's reference starts with W2 zero and the static part a one on the newest state. Here that
one is written apart, as in `DenseFormer`, so that a is zero at the start and the model the standard
one. Its released port draws the static part at random instead, which is another model. W1, whose
start shows in no output, is drawn with a variance of 1 / D, so that hidden units are of order one.
The GELU is the exact one. Its options (norms around the average, MLPs that widen with depth) are
left out: neither is a matter of the residual.

Weights may be negative and do not sum to one. W1 and W2 are decayed as other matrices, a is not.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.layout import SUBLAYERS_PER_LAYER, check_count, check_layers
from attnres.ops.border import check_eps
from attnres.residual.arithmetic import project, rms_normed, weighted_sum
from attnres.residual.base import (
    Mix,
    Output,
    Residual,
    Start,
    Traffic,
    Tuning,
    Ways,
    check_depth,
    check_sources,
    parts_of,
)
from attnres.residual.coordinates import row_of_read

WaysOfMudd = Literal["residual", "qkvr"]


class MuddState(NamedTuple):
    """The states that later averages read, the one that goes on, and what an attention reads."""

    layers: tuple[Tensor, ...]  # X_0, the embedding, then X_i of every finished layer, each BTD
    stream_BTD: Tensor  # Y^R of the last finished layer and the outputs since
    ways: Ways | None = None  # Y of query, key and value, until the attention is written


class Aggregate(nn.Module):
    """The weights of one average, for every way: two small matrices and a static part."""

    def __init__(self, dim: int, n_states: int, n_ways: int, eps: float):
        super().__init__()
        n = n_ways * n_states
        self.dim, self.eps = dim, eps
        self.hidden = nn.Parameter(torch.empty(dim, n))  # W1
        self.out = nn.Parameter(torch.empty(n, n))  # W2 of all ways
        self.static = nn.Parameter(torch.empty(n_ways, n_states))  # a, newest last

    def reset_parameters(self) -> None:
        nn.init.normal_(self.hidden, std=self.dim**-0.5)
        nn.init.zeros_(self.out)
        nn.init.zeros_(self.static)

    def forward(self, states: tuple[Tensor, ...]) -> list[Tensor]:
        """Each way's mix of the states, BTD."""
        newest_BTD = states[-1]
        normed_BTD = rms_normed(newest_BTD[..., : self.dim], self.eps)
        hidden_BTK = F.gelu(project(normed_BTD, self.hidden))
        weights = project(hidden_BTK, self.out).unflatten(-1, self.static.shape) + self.static
        mixes = []
        for added_BTJ in weights.unbind(dim=-2):
            *earlier, added_BT1 = added_BTJ.split(1, dim=-1)
            mix_BTD = weighted_sum((*earlier, 1 + added_BT1), states)
            mixes.append(mix_BTD.to(newest_BTD.dtype))
        return mixes


class MuddFormer(Residual[MuddState]):
    """Averages over the states after the layers before, weighed by every token.

    Args:
        dim: width of the hidden state.
        n_sublayers: residual branches in the model.
        ways: "residual" for the stream alone, or "qkvr", where the first sublayer of each layer is
            an attention that takes a mix for query, key and value.
        eps: RMSNorm epsilon of the weights' input.
        sublayers_per_layer: sublayers between two averages, as in `DenseFormer`.

    Raises:
        ValueError: unknown ways, or a width, count or epsilon that is none.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        ways: WaysOfMudd = "qkvr",
        eps: float = 1e-6,
        sublayers_per_layer: int = SUBLAYERS_PER_LAYER,
    ):
        super().__init__()
        check_count("dim", dim)
        check_eps(eps)
        _check_ways(ways)
        n_layers = check_layers(n_sublayers, sublayers_per_layer)
        self.dim, self.n_sublayers, self.sublayers_per_layer = dim, n_sublayers, sublayers_per_layer
        n_ways = 1 if ways == "residual" else 4
        self.ways_by_layer = (*(n_ways,) * (n_layers - 1), 1)
        self.aggregates = nn.ModuleList(
            Aggregate(dim, layer + 1, n, eps) for layer, n in enumerate(self.ways_by_layer, 1)
        )
        self.reset_parameters()

    def start(self, embed_BTD: Tensor) -> MuddState:
        return MuddState((embed_BTD,), embed_BTD)

    def read(self, state: MuddState, depth: int) -> tuple[Mix, MuddState]:
        self._check(state, depth)
        return state.stream_BTD if state.ways is None else state.ways, state

    def write(self, state: MuddState, depth: int, out_BTD: Output) -> MuddState:
        self._check(state, depth)
        stream_BTD = state.stream_BTD
        for part_BTD in parts_of(out_BTD, stream_BTD, depth):
            stream_BTD = stream_BTD + part_BTD
        if (depth + 1) % self.sublayers_per_layer:
            return MuddState(state.layers, stream_BTD)
        layers = (*state.layers, stream_BTD)
        *ways, stream_BTD = self.aggregates[len(state.layers) - 1](layers)
        return MuddState(layers, stream_BTD, Ways(*ways) if ways else None)

    def finish(self, state: MuddState) -> Tensor:
        return state.stream_BTD

    def reset_parameters(self) -> None:
        for aggregate in self.aggregates:
            assert isinstance(aggregate, Aggregate)
            aggregate.reset_parameters()

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: MuddState) -> Tensor:
        return state.stream_BTD

    def has_ways(self, depth: int) -> bool:
        layer, place = divmod(depth, self.sublayers_per_layer)
        return layer > 0 and place == 0 and self.ways_by_layer[layer - 1] > 1

    def mixing(self, state: MuddState, depth: int) -> tuple[Tensor, MuddState]:
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """As the standard residual; an average reads the earlier states once for all its ways."""
        check_depth(depth, self.n_sublayers - 1)
        layer, rest = divmod(depth + 1, self.sublayers_per_layer)
        if rest:
            return Traffic(n_read=2, n_written=1)
        is_kept = depth < self.n_sublayers - 1
        return Traffic(n_read=2 + layer, n_written=self.ways_by_layer[layer - 1] + is_kept)

    def tuning(self) -> tuple[Tuning, ...]:
        """The matrices are decayed, as those of the model; the static parts are not."""
        names = [name for name, _ in self.named_parameters()]
        static = tuple(name for name in names if name.endswith("static"))
        matrices = tuple(name for name in names if name not in static)
        return Tuning(matrices, is_decayed=True), Tuning(static)

    def _check(self, state: MuddState, depth: int) -> None:
        check_depth(depth, self.n_sublayers - 1)
        check_sources(len(state.layers), 1 + depth // self.sublayers_per_layer, depth)


def _check_ways(ways: str) -> None:
    if ways not in get_args(WaysOfMudd):
        raise ValueError(f"ways must be 'residual' or 'qkvr', got {ways!r}")


@dataclass(frozen=True, kw_only=True)
class MuddFormerConfig:
    """Arguments as in `MuddFormer`."""

    ways: WaysOfMudd = "qkvr"
    eps: float = 1e-6
    sublayers_per_layer: int = SUBLAYERS_PER_LAYER

    def __post_init__(self):
        _check_ways(self.ways)
        check_eps(self.eps)
        check_count("sublayers_per_layer", self.sublayers_per_layer)

    def build(self, dim: int, n_sublayers: int) -> MuddFormer:
        return MuddFormer(dim, n_sublayers, self.ways, self.eps, self.sublayers_per_layer)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {
            "ways": self.ways,
            "eps": self.eps,
            "sublayers_per_layer": self.sublayers_per_layer,
        }
