"""Bytes that sources take: in training and in prefill."""

from attnres.layout import check_count


def source_bytes(n_vectors: float, n_tokens: int, dim: int, bytes_per_number: int = 2) -> int:
    """`n_vectors` a token of width `dim`, bfloat16 by default."""
    return round(n_vectors * n_tokens * dim * bytes_per_number)


def prefill_bytes(
    n_sources: int,
    n_tokens: int,
    dim: int,
    *,
    n_shards: int = 1,
    chunk_tokens: int | None = None,
    bytes_per_number: int = 2,
) -> int:
    """What each device holds of the sources of a prompt (arXiv:2603.15031, section 4.2).

    Sources belong to one token, so a prompt may be cut along its length: into shards, one a device,
    and into chunks, one after the other.

    Args:
        n_sources: vectors a token; the paper counts the blocks, and leaves the embedding out.
        chunk_tokens: tokens prefilled at once, over all shards; all where it is None.

    Raises:
        ValueError: a count that is no positive integer.
    """
    chunk_tokens = n_tokens if chunk_tokens is None else chunk_tokens
    counts = {"n_sources": n_sources, "n_tokens": n_tokens, "dim": dim, "n_shards": n_shards}
    for name, value in (counts | {"chunk_tokens": chunk_tokens}).items():
        check_count(name, value)
    tokens_at_once = -(-min(n_tokens, chunk_tokens) // n_shards)
    return source_bytes(n_sources, tokens_at_once, dim, bytes_per_number)
