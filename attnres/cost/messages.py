"""Vectors that stages of an interleaved pipeline send (arXiv:2603.15031, section 4.1).

P stages hold V chunks of layers each, C = PV, and a chunk finishes N_p sources on average. The
ordinary activation, which crosses every edge in any model, is not counted, nor the embedding.
"""

from typing import NamedTuple

from attnres.layout import check_count


class Messages(NamedTuple):
    """Vectors of D a token, forward; the backward sends as many gradients."""

    everything: float  # each transition carries all sources so far: C(C-1)/2 N_p
    cached: float  # a stage keeps what it has received: (P(P-1)/2 + (V-1) P^2) N_p


def messages(n_stages: int, n_virtual: int, sources_per_chunk: float = 1.0) -> Messages:
    """ValueError for a count that is no positive integer, and for sources that are not positive."""
    check_count("n_stages", n_stages)
    check_count("n_virtual", n_virtual)
    if not sources_per_chunk > 0:
        raise ValueError(f"sources_per_chunk must be positive, got {sources_per_chunk}")
    n_chunks = n_stages * n_virtual
    everything = n_chunks * (n_chunks - 1) // 2
    cached = n_stages * (n_stages - 1) // 2 + (n_virtual - 1) * n_stages**2
    return Messages(everything * sources_per_chunk, cached * sources_per_chunk)
