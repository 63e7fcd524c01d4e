"""What joining sublayers over depth must move: vectors of D a token and a sublayer.

A sublayer's own reads and writes are left out, and scalars a token too. The paper counts a source
that serves as key and as value as two reads (arXiv:2603.15031, table 1 and appendix B); a fused
kernel reads it once. L sublayers in N blocks of S; m streams of mHC.
"""

from typing import NamedTuple

from attnres.layout import check_count


class Moved(NamedTuple):
    """Vectors a token and a sublayer, in symbols and as a number."""

    symbols: str
    vectors: float


class Scheme(NamedTuple):
    """A way to join sublayers, in both conventions."""

    name: str
    twice: Moved  # keys and values are two reads, as in the paper
    once: Moved  # a source is read once


def schemes(n_sublayers: int = 128, n_blocks: int = 8, n_streams: int = 4) -> list[Scheme]:
    """The paper's table; by default at its own sizes, where it says 3, 34, 24 and 5.5.

    The naive Full of 130 is not in the published table; it follows from the same count. Two phases
    of Full take groups of S readers, and the paper leaves out that phase 2 reads back the mix of
    phase 1. The block sums that phase 1 of Block reads are N/S to the paper, which leaves the
    embedding out; read once, and with it, they are (N+1)/(2S).

    Raises:
        ValueError: a size that is no positive integer, more blocks than sublayers.
    """
    sizes = {"n_sublayers": n_sublayers, "n_blocks": n_blocks, "n_streams": n_streams}
    for name, value in sizes.items():
        check_count(name, value)
    if n_blocks > n_sublayers:
        raise ValueError(f"n_blocks={n_blocks} is more than the model's {n_sublayers} sublayers")
    L, N, m = n_sublayers, n_blocks, n_streams
    S = L / N
    return [
        Scheme("standard", Moved("3", 3), Moved("3", 3)),
        Scheme("mHC", Moved("8m+2", 8 * m + 2), Moved("8m+2", 8 * m + 2)),
        Scheme("Full, naive", Moved("L+2", L + 2), Moved("(L+3)/2", (L + 3) / 2)),
        Scheme("Full, two phases", Moved("S+N", S + N), Moved("(S+N)/2+1", (S + N) / 2 + 1)),
        Scheme("Block, two phases", Moved("N/S+5", N / S + 5),
               Moved("(N+1)/(2S)+5", (N + 1) / (2 * S) + 5)),
    ]  # fmt: skip
