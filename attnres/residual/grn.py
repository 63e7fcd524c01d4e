"""Generalised residual networks of DeepCrossAttention: layers weighed anew by each (2502.06785).

    v1: h = sum_j b_j g_j                             b_j a number
    v2: h = sum_j b_j * g_j                           b_j one number a channel
    v3: h = sum_j (b_j + relu(w . g_j)) * g_j         and one number a token

over g_0, the embedding, and g_j, the output of transformer layer j: the sum of what its attention
and its MLP give, without anything they read. DeepCrossAttention is v3 three times in front of an
attention, for its query, key and value (`ways="qkv"`), and once before the final norm. The MLP of a
layer keeps a skip of its own: it reads what the attention read, and the attention's output.

With all b one and w zero, as the paper starts, every read is the standard residual's. The gradient
of relu at zero is commonly taken as zero, and w would stay where it is; here it is one.

Left open by what is published, and chosen here: of three ways the MLP reads on from the query's,
which is the token's own (keys and values speak to others); the first layer, which has one source,
reads it as it is, as in AttnRes.

`n_last=k` (k-DCA) keeps the embedding, the last k layers and the sum of the others as one source,
for which the start stays that of the standard residual.

b and w train at the model's learning rate; neither is decayed, as a decay pulls b from one to zero.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from attnres.layout import SUBLAYERS_PER_LAYER, check_count, check_layers
from attnres.residual.arithmetic import project, weighted_sum, wide
from attnres.residual.base import (
    Mix,
    Output,
    Residual,
    Start,
    Traffic,
    Ways,
    check_depth,
    check_sources,
    parts_of,
)
from attnres.residual.coordinates import row_of_read

WaysOfGrn = Literal["one", "qkv"]
VERSIONS = (1, 2, 3)


class GrnState(NamedTuple):
    """The outputs of the layers, and where the unfinished one stands."""

    layers: tuple[Tensor, ...]  # the embedding, then the last layers' outputs, each BTD
    rest_BTD: Tensor | None = None  # the sum of the layers between
    mix_BTD: Tensor | None = None  # what the unfinished layer's first sublayer read
    partial: Tensor | None = None  # the sum of the unfinished layer's outputs, BTD

    @property
    def sources(self) -> tuple[Tensor, ...]:
        if self.rest_BTD is None:
            return self.layers
        return (self.layers[0], self.rest_BTD, *self.layers[1:])


class Gates(nn.Module):
    """The weights of one read, for every way."""

    def __init__(self, dim: int, n_sources: int, n_ways: int, version: int):
        super().__init__()
        self.dim = dim
        shape = (n_ways, n_sources) if version == 1 else (n_ways, n_sources, dim)
        self.static = nn.Parameter(torch.empty(shape))  # b
        self.query = nn.Parameter(torch.empty(n_ways, dim)) if version == 3 else None  # w

    def reset_parameters(self) -> None:
        nn.init.ones_(self.static)
        if self.query is not None:
            nn.init.zeros_(self.query)

    def forward(self, sources: tuple[Tensor, ...]) -> list[Tensor]:
        """Each way's mix, BTD."""
        weights = [self._weights(source_BTD, j) for j, source_BTD in enumerate(sources)]
        return [
            weighted_sum(of_way, sources).to(sources[0].dtype)
            for of_way in zip(*weights, strict=True)
        ]

    def _weights(self, source_BTD: Tensor, j: int) -> list[Tensor]:
        """Of source j in each way. Channels beyond `dim` are coordinates: they get the mean."""
        static = wide(self.static[:, j])
        n_more = source_BTD.shape[-1] - self.dim
        if static.dim() == 2 and n_more:
            mean_C1 = static.mean(dim=-1, keepdim=True)
            static = torch.cat([static, mean_C1.expand(-1, n_more)], dim=-1)
        if self.query is None:
            return list(static)
        logit_BTC = project(source_BTD[..., : self.dim], self.query.t())
        gate_BTC = torch.where(logit_BTC < 0, 0, logit_BTC)  # relu whose gradient at zero is one
        return [b + gate_BT1 for b, gate_BT1 in zip(static, gate_BTC.split(1, dim=-1), strict=True)]


class Grn(Residual[GrnState]):
    """Every layer reads a weighted sum of the outputs of all layers before it.

    Args:
        dim: width of the hidden state.
        n_sublayers: residual branches in the model.
        version: 1, 2 or 3, as above.
        ways: "one" mix, or "qkv", where the first sublayer of each layer is an attention that takes
            a mix for query, key and value.
        n_last: layers that are sources of their own, beside the embedding; None is all.
        sublayers_per_layer: 2, attention and MLP; 1 where both are one sublayer, or to make each of
            the two a source and a reader.

    Raises:
        ValueError: an unknown version, unknown ways or a count that is no positive integer.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        version: int = 3,
        ways: WaysOfGrn = "one",
        n_last: int | None = None,
        sublayers_per_layer: int = SUBLAYERS_PER_LAYER,
    ):
        super().__init__()
        check_count("dim", dim)
        _check(version, ways, n_last)
        self.n_layers = check_layers(n_sublayers, sublayers_per_layer)
        self.dim, self.n_sublayers, self.sublayers_per_layer = dim, n_sublayers, sublayers_per_layer
        self.n_last = self.n_layers if n_last is None else n_last
        self.n_ways = 1 if ways == "one" else 3
        self.gates = nn.ModuleList(
            Gates(dim, self._n_sources(layer), self._n_ways(layer), version)
            for layer in range(1, self.n_layers + 1)
        )
        self.reset_parameters()

    def start(self, embed_BTD: Tensor) -> GrnState:
        return GrnState((embed_BTD,))

    def read(self, state: GrnState, depth: int) -> tuple[Mix, GrnState]:
        self._check_place(state, depth)
        layer, place = divmod(depth, self.sublayers_per_layer)
        if place:
            if state.mix_BTD is None or state.partial is None:
                raise ValueError(f"at depth {depth} the sublayer before must be read and written")
            return state.mix_BTD + state.partial, state
        mixes = self._mixes(state, layer)
        state = state._replace(mix_BTD=mixes[0])
        return mixes[0] if len(mixes) == 1 else Ways(*mixes), state

    def write(self, state: GrnState, depth: int, out_BTD: Output) -> GrnState:
        self._check_place(state, depth)
        total_BTD = state.partial
        for part_BTD in parts_of(out_BTD, state.layers[0], depth):
            total_BTD = part_BTD if total_BTD is None else total_BTD + part_BTD
        if (depth + 1) % self.sublayers_per_layer:
            return state._replace(partial=total_BTD)
        embed_BTD, *last = (*state.layers, cast(Tensor, total_BTD))
        rest_BTD = state.rest_BTD
        if len(last) > self.n_last:
            fallen_BTD = last.pop(0)
            rest_BTD = fallen_BTD if rest_BTD is None else rest_BTD + fallen_BTD
        return GrnState((embed_BTD, *last), rest_BTD)

    def finish(self, state: GrnState) -> Tensor:
        self._check_sources(state, self.n_sublayers)
        return self._mixes(state, self.n_layers)[0]

    def reset_parameters(self) -> None:
        for gates in self.gates:
            cast(Gates, gates).reset_parameters()

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: GrnState) -> Tensor:
        """The unfinished layer's sum, or that of the layer just finished."""
        return state.layers[-1] if state.partial is None else state.partial

    def has_ways(self, depth: int) -> bool:
        layer, place = divmod(depth, self.sublayers_per_layer)
        return layer > 0 and place == 0 and self.n_ways > 1

    def mixing(self, state: GrnState, depth: int) -> tuple[Tensor, GrnState]:
        """The mean over channels, for versions 2 and 3."""
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """Each source once for all ways; an MLP's input and its layer's sum; what falls out."""
        check_depth(depth, self.n_sublayers - 1)
        layer, place = divmod(depth, self.sublayers_per_layer)
        n_read, n_written = (4, 2) if place else (self._n_sources(layer), self._n_ways(layer))
        is_closed = place == self.sublayers_per_layer - 1
        falls = is_closed and layer + 1 > self.n_last + 1  # the first to fall is the rest itself
        return Traffic(n_read + 2 * falls, n_written + falls)

    def _mixes(self, state: GrnState, layer: int) -> list[Tensor]:
        return [state.layers[0]] if layer == 0 else self.gates[layer - 1](state.sources)

    def _n_sources(self, layer: int) -> int:
        """Of the read that opens a layer, counted from 0; the last is the output read."""
        return 1 + min(layer, self.n_last) + (layer > self.n_last)

    def _n_ways(self, layer: int) -> int:
        return self.n_ways if 0 < layer < self.n_layers else int(layer > 0)

    def _check_place(self, state: GrnState, depth: int) -> None:
        check_depth(depth, self.n_sublayers - 1)
        self._check_sources(state, depth)

    def _check_sources(self, state: GrnState, depth: int) -> None:
        n_expected = self._n_sources(depth // self.sublayers_per_layer)
        check_sources(len(state.sources), n_expected, depth)


def _check(version: Any, ways: Any, n_last: Any) -> None:
    if type(version) is not int or version not in VERSIONS:  # True and 1.0 are equal to 1
        raise ValueError(f"version must be 1, 2 or 3, got {version!r}")
    if ways not in get_args(WaysOfGrn):
        raise ValueError(f"ways must be 'one' or 'qkv', got {ways!r}")
    if n_last is not None:
        check_count("n_last", n_last)


@dataclass(frozen=True, kw_only=True)
class GrnConfig:
    """Arguments as in `Grn`; DeepCrossAttention is `GrnConfig(ways="qkv")`."""

    version: int = 3
    ways: WaysOfGrn = "one"
    n_last: int | None = None
    sublayers_per_layer: int = SUBLAYERS_PER_LAYER

    def __post_init__(self):
        _check(self.version, self.ways, self.n_last)
        check_count("sublayers_per_layer", self.sublayers_per_layer)

    def build(self, dim: int, n_sublayers: int) -> Grn:
        settings = (self.version, self.ways, self.n_last, self.sublayers_per_layer)
        return Grn(dim, n_sublayers, *settings)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        n_layers = check_layers(n_sublayers, self.sublayers_per_layer)
        return {
            "version": self.version,
            "ways": self.ways,
            "n_last": n_layers if self.n_last is None else min(self.n_last, n_layers),
            "sublayers_per_layer": self.sublayers_per_layer,
        }
