"""What reads without gradients carry from sublayer to sublayer."""

from typing import NamedTuple

from torch import Tensor


class ReadingState(NamedTuple):
    """What has been written so far; the last sum may stand as its two terms."""

    finished: tuple[Tensor, ...]  # the embedding, then one sum a finished block, each BTD
    closing: tuple[Tensor, ...] = ()  # the terms of one more such sum
    unfinished: tuple[Tensor, ...] = ()  # the sum of the unfinished block, or its terms
    mixes: tuple[Tensor, ...] = ()  # of phase 1, one a reader still to come, each BTD
    lse_QBT: Tensor | None = None  # of all readers that were asked; float32 or float64

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        return (*self.finished, sum_of(self.closing)) if self.closing else self.finished

    @property
    def partial(self) -> Tensor | None:
        return sum_of(self.unfinished) if self.unfinished else None

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return (*self.blocks, sum_of(self.unfinished)) if self.unfinished else self.blocks

    @property
    def summed(self) -> "ReadingState":
        """The same with every sum as one tensor."""
        unfinished = (sum_of(self.unfinished),) if self.unfinished else ()
        return ReadingState(self.blocks, (), unfinished, self.mixes, self.lse_QBT)


def sum_of(terms: tuple[Tensor, ...]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
