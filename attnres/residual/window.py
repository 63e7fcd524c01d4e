"""Attention over a window of depth: the embedding and the last outputs (arXiv:2603.15031, 5.3).

    h_l = sum_i softmax_i(query_l . RMSNorm(v_i)) v_i       over v_0 and v_{l-W}, ..., v_{l-1}

With `remainder` the sum of all outputs that fell out of the window is one more source. Then the
sources add up to the ordinary stream, so that zero queries read a multiple of it and the start is
the standard model to the epsilon of its norms; without it what falls out is lost, and the start is
another model, unless the window holds every output. The paper has no remainder. Memory does not
grow with depth in either. Queries and gains train as in `AttnRes`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from attnres.layout import BlockLayout, check_count
from attnres.ops.border import check_eps
from attnres.residual.base import Output, Start, Traffic, check_depth
from attnres.residual.depth_reader import AttendsOverDepth


class WindowState(NamedTuple):
    """What is still seen."""

    blocks: tuple[Tensor, ...]  # the embedding, then the last outputs, each BTD
    remainder_BTD: Tensor | None = None  # the sum of the outputs that fell out of the window

    @property
    def partial(self) -> None:
        """Every output is a source of its own."""

    @property
    def sources(self) -> tuple[Tensor, ...]:
        if self.remainder_BTD is None:
            return self.blocks
        return (self.blocks[0], self.remainder_BTD, *self.blocks[1:])


class Window(AttendsOverDepth[WindowState]):
    """Full `AttnRes` that forgets: the same parameters and state dict.

    Args:
        dim: width of the hidden state.
        n_sublayers: residual branches in the model.
        n_last: outputs in the window, beside the embedding; all of them is Full AttnRes.
        remainder: keep the sum of the others as a source.
        eps, impl, share_gradients: as in `AttnRes`.

    Raises:
        ValueError: a window that is no positive integer, and as `AttnRes`.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        n_last: int = 8,
        remainder: bool = False,
        eps: float = 1e-6,
        impl: str | None = None,
        share_gradients: bool = True,
    ):
        super().__init__(dim, BlockLayout.full(n_sublayers), eps, impl, share_gradients)
        check_count("n_last", n_last)
        self.n_last = n_last
        self.remainder = remainder

    def start(self, embed_BTD: Tensor) -> WindowState:
        return WindowState((self.as_source(embed_BTD),))

    def read(self, state: WindowState, depth: int) -> tuple[Tensor, WindowState]:
        check_depth(depth, self.n_sublayers - 1)
        return self.reader(state, depth)(state.sources), state

    def write(self, state: WindowState, depth: int, out_BTD: Output) -> WindowState:
        (embed_BTD, *last), _ = self.written(state, depth, out_BTD)
        remainder_BTD = state.remainder_BTD
        if len(last) > self.n_last:
            fallen_BTD = last.pop(0)
            if self.remainder:
                is_first = remainder_BTD is None
                remainder_BTD = fallen_BTD if is_first else remainder_BTD + fallen_BTD
        return WindowState((embed_BTD, *last), remainder_BTD)

    def finish(self, state: WindowState) -> Tensor:
        return self.reader(state, self.n_sublayers)(state.sources)

    @property
    def starts_as(self) -> Start:
        forgets = not self.remainder and self.n_last < self.n_sublayers
        return "other" if forgets else "multiple"

    def n_sources(self, depth: int) -> int:
        fallen = depth > self.n_last
        return 1 + min(depth, self.n_last) + (fallen and self.remainder)

    def traffic(self, depth: int) -> Traffic:
        """Each source once for the mix; what falls out is read and added to the remainder."""
        check_depth(depth, self.n_sublayers - 1)
        adds = int(self.remainder and depth > self.n_last)  # the first to fall is the remainder
        return Traffic(self.n_sources(depth) + 2 * adds, int(depth > 0) + adds)


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """Arguments as in `Window`; the paper has eight outputs and no remainder."""

    n_last: int = 8
    remainder: bool = False
    eps: float = 1e-6

    def __post_init__(self):
        check_count("n_last", self.n_last)
        check_eps(self.eps)
        if not isinstance(self.remainder, bool):
            raise ValueError(f"remainder must be True or False, got {self.remainder!r}")

    def build(self, dim: int, n_sublayers: int) -> Window:
        return Window(dim, n_sublayers, self.n_last, self.remainder, self.eps)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {
            "n_last": min(self.n_last, n_sublayers),
            "remainder": self.remainder and self.n_last < n_sublayers,
            "eps": self.eps,
        }
