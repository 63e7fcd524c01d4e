"""LAuReL: learned weights, a low-rank map and earlier streams in the residual (arXiv:2411.07501).

    h_{l+1} = a_l f_l(h_l) + b_l h_l + A_l B_l (h_l + sum_{j=1..k} c_{l,j} h_{l-j})

    RW  a, b: one number each                                    `weights`
    LR  A [D, r], B [r, D]                                       `rank`
    PA  the k streams before this one, c: one number each        `n_previous`

in any combination. Without a rank the streams of PA are added as they are (A B = 1 for them).

Left open, and chosen here: a and b are plain numbers, the one form of the paper's that can start
at 1. PA's weight of the newest stream is 1, since A B has its scale already. B and c start at zero
and A at random, N(0, 1/D): with B and c alone at zero the model is the standard one at the start,
and both get a gradient from the first steps on (were A zero too, B would get none). A stream that
does not exist yet, at the first sublayers, has no weight.

Gemma 3n's LAuReL also divides by sqrt(2) and mixes with AltUp; that is another formula.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnres.layout import check_count
from attnres.residual.arithmetic import project, wide
from attnres.residual.base import Output, Residual, Start, Traffic, Tuning, check_depth, parts_of
from attnres.residual.coordinates import row_of_read


class LaurelState(NamedTuple):
    """The stream and those before it."""

    stream_BTD: Tensor
    previous: tuple[Tensor, ...] = ()  # the newest first, each BTD


class Join(nn.Module):
    """The weights of one sublayer; a part that is not asked for is None."""

    def __init__(self, dim: int, has_weights: bool, rank: int | None, n_previous: int):
        super().__init__()

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape))

        self.branch_weight = parameter(1) if has_weights else None
        self.stream_weight = parameter(1) if has_weights else None
        self.down = parameter(dim, rank) if rank else None  # B^T
        self.up = parameter(rank, dim) if rank else None  # A^T
        self.previous_weight = parameter(n_previous) if n_previous else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.branch_weight, self.stream_weight):
            if weight is not None:
                nn.init.ones_(weight)
        if self.down is not None and self.up is not None:
            nn.init.zeros_(self.down)
            nn.init.normal_(self.up, std=self.up.shape[1] ** -0.5)
        if self.previous_weight is not None:
            nn.init.zeros_(self.previous_weight)

    def carried(self, stream_BTD: Tensor, previous: tuple[Tensor, ...]) -> Tensor:
        """Everything but the branch, in the dtype of the arithmetic."""
        stream_BTD = wide(stream_BTD)
        kept_BTD = stream_BTD if self.stream_weight is None else self.stream_weight * stream_BTD
        if self.previous_weight is None:
            read_BTD, earlier_BTD = stream_BTD, None
        else:
            pairs = zip(self.previous_weight, previous, strict=True)
            earlier_BTD = torch.stack([weight * wide(h_BTD) for weight, h_BTD in pairs]).sum(0)
            read_BTD = stream_BTD + earlier_BTD
        if self.down is not None and self.up is not None:
            return kept_BTD + project(project(read_BTD, self.down), self.up)
        return kept_BTD if earlier_BTD is None else kept_BTD + earlier_BTD

    def branch(self, part_BTD: Tensor) -> Tensor:
        part_BTD = wide(part_BTD)
        return part_BTD if self.branch_weight is None else self.branch_weight * part_BTD


class Laurel(Residual[LaurelState]):
    """The state is the stream and the `n_previous` before it.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        weights: RW, learned weights of branch and stream.
        rank: LR, rank of the map of the stream; None for none.
        n_previous: PA, number of earlier streams.

    Raises:
        ValueError: a size that is not positive, a negative `n_previous`, nothing asked for.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        weights: bool = True,
        rank: int | None = None,
        n_previous: int = 0,
    ):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        _check_settings(weights, rank, n_previous)
        self.dim, self.n_sublayers = dim, n_sublayers
        self.has_weights, self.rank, self.n_previous = weights, rank, n_previous
        self.joins = nn.ModuleList(
            Join(dim, weights, rank, min(depth, n_previous)) for depth in range(n_sublayers)
        )

    def start(self, embed_BTD: Tensor) -> LaurelState:
        return LaurelState(embed_BTD)

    def read(self, state: LaurelState, depth: int) -> tuple[Tensor, LaurelState]:
        check_depth(depth, self.n_sublayers - 1)
        return state.stream_BTD, state

    def write(self, state: LaurelState, depth: int, out_BTD: Output) -> LaurelState:
        check_depth(depth, self.n_sublayers - 1)
        join = cast(Join, self.joins[depth])
        dtype = state.stream_BTD.dtype
        parts = parts_of(out_BTD, state.stream_BTD, depth)
        stream_BTD = join.carried(*state)
        for part_BTD in parts:
            stream_BTD = (wide(stream_BTD) + join.branch(part_BTD)).to(dtype)
        previous = (state.stream_BTD, *state.previous)[: self.n_previous]
        return LaurelState(stream_BTD, previous)

    def finish(self, state: LaurelState) -> Tensor:
        return state.stream_BTD

    def reset_parameters(self) -> None:
        for join in self.joins:
            cast(Join, join).reset_parameters()

    @property
    def starts_as(self) -> Start:
        return "standard"

    def stream(self, state: LaurelState) -> Tensor:
        return state.stream_BTD

    def mixing(self, state: LaurelState, depth: int) -> tuple[Tensor, LaurelState]:
        """Of scalars. With a rank every weight is a matrix over channels, which is refused."""
        if self.rank is not None:
            raise NotImplementedError("Laurel with a rank mixes channels by matrices, not scalars")
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """All streams and the output in, the stream out; the product with B reads apart.

        That product reads all streams; the sum, where A's ends, reads stream and output.
        """
        check_depth(depth, self.n_sublayers - 1)
        n_streams = 1 + min(depth, self.n_previous)
        return Traffic(n_read=n_streams + (1 if self.rank is None else 2), n_written=1)

    def tuning(self) -> tuple[Tuning, ...]:
        """The factors of a map decay like the model's matrices, toward the standard residual.

        The weights do not: theirs is 1.
        """
        names = [name for name, _ in self.named_parameters()]
        maps = [name for name in names if name.endswith(("down", "up"))]
        groups = (
            Tuning(tuple(maps), is_decayed=True),
            Tuning(tuple(name for name in names if name not in maps)),
        )
        return tuple(group for group in groups if group.names)


@dataclass(frozen=True, kw_only=True)
class LaurelConfig:
    """RW by default; `rank` adds LR and `n_previous` PA."""

    weights: bool = True
    rank: int | None = None
    n_previous: int = 0

    def __post_init__(self):
        _check_settings(self.weights, self.rank, self.n_previous)

    def build(self, dim: int, n_sublayers: int) -> Laurel:
        return Laurel(dim, n_sublayers, self.weights, self.rank, self.n_previous)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """Nothing: what is learned, and of which rank, shows in the names and shapes."""
        return {}


def _check_settings(weights: object, rank: object, n_previous: object) -> None:
    if not isinstance(weights, bool):
        raise ValueError(f"weights must be True or False, got {weights!r}")
    if rank is not None:
        check_count("rank", rank)
    if isinstance(n_previous, bool) or not isinstance(n_previous, int) or n_previous < 0:
        raise ValueError(f"n_previous must be an integer from 0 on, got {n_previous!r}")
    if not weights and rank is None and n_previous == 0:
        raise ValueError("weights=False, no rank and n_previous=0 is the standard residual")
