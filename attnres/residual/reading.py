"""Attention over depth without gradients: few calls, in one phase or in two, as it costs least.

In decoding a read takes microseconds, and Python around it several times as long. So a sublayer's
output is added to its block's sum in the call that reads the sum, and what a group of readers
finds in the blocks that are finished is found in one call (`attnres.residual.two_phase`). Weights
are taken from where they lie at every read: nothing is kept that could be out of date.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops import depth_attention_queries
from attnres.ops.cpu_quick import Asked, Found
from attnres.ops.plain_norm import PlainNorm, plain_norm
from attnres.ops.quick import is_quick
from attnres.ops.quick import read as quick_read
from attnres.residual.base import Output, Parts, check_depth, check_sources, parts_of, whole
from attnres.residual.costs_of_reads import ReadPlan, plan_reads
from attnres.residual.depth_reader import AttendsOverDepth, DepthReader, Sources
from attnres.residual.groups import groups
from attnres.residual.reading_state import ReadingState, sum_of

State = TypeVar("State", bound=Sources)
Reads = Literal["auto", "one", "two"]
READS = "ATTNRES_READS"  # of the environment: what a residual's `reads` is when it is made
MOST_PLANS = 1024  # kept a residual: one for each number of tokens that comes at once


def check_reads(reads: object) -> Reads:
    """ValueError for what is no way of reading."""
    if reads not in get_args(Reads):
        raise ValueError(f"reads must be one of {', '.join(get_args(Reads))}, got {reads!r}")
    return cast(Reads, reads)


class ReadsQuickly(AttendsOverDepth[State]):
    """Base of the methods whose reads are means: with and without gradients the same function.

    `reads` says how it reads where no gradient is recorded: in "one" phase, in "two", or "auto", by
    what is estimated to take least time for the tokens at hand.
    """

    def __init__(
        self,
        dim: int,
        layout: BlockLayout,
        eps: float = 1e-6,
        impl: str | None = None,
        share_gradients: bool = True,
        readers_per_group: int | None = None,
    ):
        super().__init__(dim, layout, eps, impl, share_gradients)
        self.readers_per_group = readers_per_group
        self.groups = groups(layout, readers_per_group)
        self.reads = cast(Reads, os.environ.get(READS, "auto"))
        depths = range(self.n_sublayers + 1)
        self._plans: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._n_sources = tuple(layout.n_sources(depth) for depth in depths)
        self._names = tuple(str(depth) for depth in depths)  # of the readers
        self._closes = tuple(layout.closes_after(depth) for depth in depths[:-1])

    def cut_at(self, depths: Iterable[int]) -> None:
        """Let a group begin at each of these depths, so that none asks across them.

        A pipeline that is cut there has the later readers elsewhere, and sends no mixes.
        """
        self.groups = groups(self.layout, self.readers_per_group, depths)
        self._plans.clear()

    def quick_start(self, embed_BTD: Tensor) -> ReadingState | None:
        """The state before the first sublayer, where nobody records what is done to it."""
        impl = cast(DepthReader, self.readers[-1]).impl
        return ReadingState((embed_BTD,)) if is_quick(embed_BTD, impl) else None

    def read_normed(
        self, state: Any, depth: int, norm: Callable[[Tensor], Tensor]
    ) -> tuple[Any, Any]:
        is_watched = torch.compiler.is_compiling() or "read" in self.__dict__  # by a listener
        if is_watched or not isinstance(state, ReadingState):
            return super().read_normed(state, depth, norm)
        check_depth(depth, self.n_sublayers - 1)
        plain = plain_norm(norm, state.finished[0])
        h_BTD, state, is_normed = self._quick_read(state, depth, plain)
        return (h_BTD if is_normed else norm(h_BTD)), state

    def quick_read(self, state: ReadingState, depth: int) -> tuple[Tensor, ReadingState]:
        h_BTD, state, _ = self._quick_read(state, depth)
        return h_BTD, state

    def _quick_read(
        self, state: ReadingState, depth: int, norm: PlainNorm | None = None
    ) -> tuple[Tensor, ReadingState, bool]:
        """The mix, or what the norm makes of it; the state that goes on; whether it is normed."""
        finished, closing, unfinished, mixes, lse_QBT = state
        n_sources = len(finished) + bool(closing) + bool(unfinished)
        check_sources(n_sources, self._n_sources[depth], depth)
        if depth == 0:
            return finished[0], state, False
        if torch.compiler.is_compiling():  # layers one by one, in a model that is not
            return *self._read_slowly(state.summed, depth, 0, None), False
        n_asked, asked = self._n_asked(finished[0])[depth], None
        if n_asked:
            n_to_come = self.groups[depth].last + 1 - depth
            if len(mixes) < n_to_come:
                state = self._ask_quickly(state, depth, n_asked)
                finished, closing, unfinished, mixes, lse_QBT = state
            lse_QBT = cast(Tensor, lse_QBT)
            asked = Asked(mixes[-n_to_come], lse_QBT, lse_QBT.size(0) - n_to_come)
            mixes = mixes[len(mixes) - n_to_come + 1 :]
            if n_sources == n_asked:
                state = ReadingState(finished, closing, unfinished, mixes, lse_QBT)
                return asked.mix_D, state, False
        rows = [*finished[n_asked:], *closing, *unfinished]
        has_terms = len(closing) + len(unfinished) == 2
        found = self._found(depth, depth, rows, has_terms, asked, norm=norm)
        if found is None:
            return *self._read_slowly(state.summed, depth, n_asked, asked), False
        if has_terms:
            total_BTD = cast(Tensor, found.total_D)
            if closing:
                finished = (*finished, total_BTD)
            else:
                unfinished = (total_BTD,)
        state = ReadingState(finished, (), unfinished, mixes, lse_QBT)
        return found.mixes[0], state, norm is not None

    def _read_slowly(
        self, state: ReadingState, depth: int, n_asked: int, asked: Asked | None
    ) -> tuple[Tensor, ReadingState]:
        reader = cast(Any, self.reader(cast(Any, state), depth))
        if asked is None:
            return reader(state.sources), state
        later = state.sources[n_asked:]
        h_BTD = reader.go_on(asked.mix_D, asked.lse_Q[asked.query], later)
        n_to_come = self.groups[depth].last - depth
        return h_BTD, state._replace(mixes=state.mixes[len(state.mixes) - n_to_come :])

    def quick_write(self, state: ReadingState, depth: int, out_BTD: Output) -> ReadingState:
        check_depth(depth, self.n_sublayers - 1)
        finished, closing, unfinished, mixes, lse_QBT = state
        n_sources = len(finished) + bool(closing) + bool(unfinished)
        check_sources(n_sources, self._n_sources[depth], depth)
        if closing or len(unfinished) > 1:
            finished, _, unfinished, *_ = state.summed
        first = finished[0]
        if isinstance(out_BTD, Parts):
            part_BTD, out_BTD = parts_of(out_BTD, first, depth)
            unfinished = (sum_of((*unfinished, part_BTD)),)
        if (
            type(out_BTD) is not Tensor
            or out_BTD.dtype is not first.dtype
            or out_BTD.shape != first.shape
            or not out_BTD.is_contiguous()
        ):
            out_BTD = whole(out_BTD, first, depth).contiguous()
        if self.groups[depth].last == depth:
            mixes, lse_QBT = (), None
        terms = (*unfinished, out_BTD)
        if not self._closes[depth]:
            return ReadingState(finished, (), terms, mixes, lse_QBT)
        if unfinished:
            return ReadingState(finished, terms, (), mixes, lse_QBT)
        return ReadingState((*finished, out_BTD), (), (), mixes, lse_QBT)

    def read_plan(self, n_tokens: int, device_type: str = "cpu") -> ReadPlan:
        """How so many tokens, of all sequences together, are read at once without gradients."""
        return plan_reads(self.layout, self.groups, n_tokens, self.dim, device_type, self.reads)

    @property
    def reads(self) -> Reads:
        return self._reads

    @reads.setter
    def reads(self, reads: Reads) -> None:
        self._reads: Reads = check_reads(reads)

    def _n_asked(self, like_BTD: Tensor) -> tuple[int, ...]:
        """Blocks that the group of each reader asks at once; 0 where each reads for itself."""
        key = (self._reads, like_BTD.numel(), like_BTD.is_cpu)
        found = self._plans.get(key)
        if found is None:
            n_tokens = like_BTD.numel() // like_BTD.shape[-1]
            found = self.read_plan(n_tokens, like_BTD.device.type).n_asked
            if len(self._plans) < MOST_PLANS:
                self._plans[key] = found
        return found

    def _ask_quickly(self, state: ReadingState, depth: int, n_asked: int) -> ReadingState:
        """Phase 1 for the reader at `depth` and those of its group that come after it."""
        finished, closing, unfinished, *_ = state
        last = self.groups[depth].last
        asks_terms = len(finished) < n_asked
        rows = [*finished[:n_asked], *(closing if asks_terms else ())]
        found = self._found(depth, last, rows, asks_terms, wants_lse=True)
        if found is not None:
            if asks_terms:
                finished, closing = (*finished, cast(Tensor, found.total_D)), ()
            return ReadingState(finished, closing, unfinished, tuple(found.mixes), found.lse_Q)
        state = state.summed
        readers = [cast(DepthReader, self.readers[d]) for d in range(depth, last + 1)]
        mix_QBTD, lse_QBT = depth_attention_queries(
            torch.stack([reader.query for reader in readers]),
            state.finished[:n_asked],
            torch.stack([reader.key_weight for reader in readers]),
            eps=readers[0].eps,
            impl=readers[0].impl,
        )
        return state._replace(mixes=mix_QBTD.unbind(0), lse_QBT=lse_QBT)

    def _found(
        self,
        first: int,
        last: int,
        rows: list[Tensor],
        has_terms: bool,
        asked: Asked | None = None,
        wants_lse: bool = False,
        norm: PlainNorm | None = None,
    ) -> Found | None:
        """What the kernel reads for the readers from `first` to `last`, where it can."""
        modules: Any = self._modules["readers"]
        queries, key_weights, reader = [], [], cast(Any, None)
        for name in self._names[first : last + 1]:
            reader = modules._modules[name]
            if (
                type(reader) is not DepthReader
                or reader._forward_hooks
                or reader._forward_pre_hooks
                or "forward" in reader.__dict__
            ):
                return None
            parameters = reader._parameters
            queries.append(parameters["query"])
            key_weights.append(parameters["key_weight"])
        return quick_read(
            queries,
            key_weights,
            rows,
            reader.eps,
            reader.impl,
            has_terms,
            asked,
            None,
            wants_lse,
            norm,
        )
