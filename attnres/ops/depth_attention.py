"""The public ops: check, choose, call."""

from collections.abc import Sequence

from torch import Tensor

from attnres.ops import quick
from attnres.ops.backends import Implementation, fastest_impl, implementation
from attnres.ops.border import as_sources, check_eps, check_mix, check_parameter, check_stream
from attnres.ops.precision import without_autocast

Sources = Sequence[Tensor] | Tensor


def depth_attention(
    query_D: Tensor,
    sources: Sources,
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    source_dim: int = 0,
    impl: str | None = None,
) -> Tensor:
    """Mix the sources of every token by attention over depth (arXiv:2603.15031, eqs. 2-4).

    Nothing is assumed of the leading axes: a token may be a word, an image patch or a graph node.
    Strides are read as they are; a source is copied only where its rows have no one distance from
    each other, or its numbers are not side by side.

    Args:
        query_D: learned query, the same for every token.
        sources: S tensors of one shape [..., D], the embedding first; or one tensor of all.
        key_weight_D: RMSNorm weight of the keys; the values stay unnormalised.
        eps: RMSNorm epsilon, added to the mean square; 0 needs sources without a zero vector.
        source_dim: where S stands if `sources` is a tensor: 0 in a stack [S, ..., D], -2 in a
            token-major bank [T, S, D].
        impl: a name of `backends()`; None takes the fastest of the sources' device. A named
            implementation never falls back to another.

    Returns:
        The mix, [..., D], in the widest dtype of the sources. The arithmetic is float32, or
        float64 where a source is float64, also under autocast. One source comes back bit for bit.

    Raises:
        ValueError: no source; shapes, dtypes or devices that do not fit; an unknown `impl`, or one
            that is not for the device.
        RuntimeError: the `impl` named does not run on this machine.
    """
    if (mix_D := quick.mix(query_D, sources, key_weight_D, eps, impl)) is not None:
        return mix_D
    sources = as_sources(sources, source_dim)
    _check_reader(query_D, sources, key_weight_D, eps)
    chosen = _choose(impl, sources[0])
    with without_autocast(query_D.device):
        return chosen.depth_attention(query_D, sources, key_weight_D, eps)


def depth_weights(
    query_D: Tensor,
    sources: Sources,
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    source_dim: int = 0,
    impl: str | None = None,
) -> Tensor:
    """Weights that `depth_attention` gives the sources, [S, ...], float32 or float64.

    Arguments and errors are those of `depth_attention`. Differentiable in every input.
    """
    sources = as_sources(sources, source_dim)
    _check_reader(query_D, sources, key_weight_D, eps)
    chosen = _choose(impl, sources[0])
    with without_autocast(query_D.device):
        return chosen.depth_weights(query_D, sources, key_weight_D, eps)


def centered_attention(
    query_D: Tensor,
    sources: Sources,
    stream_D: Tensor,
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    impl: str | None = None,
) -> Tensor:
    """The plain sum of the sources and what attention over depth adds to it.

    Where `stream_D` is the sum of the S sources, this is S times `depth_attention`, to rounding.
    With a zero query it is `stream_D`, bit for bit, whatever the sources. A source that is not
    finite has no such weight: every channel of its token is NaN.

    Args:
        query_D, sources, key_weight_D, eps, impl: as in `depth_attention`; all but "cpu" compute
            this in plain PyTorch, and so does that where it is compiled or the dtypes differ.
        stream_D: the sum of the sources, [..., D], added up in whatever order is to be kept.

    Returns:
        The stream and its deviation, [..., D], in the dtype of the stream; one cast at the end.

    Raises:
        As `depth_attention`; a ValueError for a stream that does not fit the sources.
    """
    mix_D = quick.around(query_D, sources, stream_D, key_weight_D, eps, impl)
    if mix_D is not None:
        return mix_D
    sources = as_sources(sources)
    _check_reader(query_D, sources, key_weight_D, eps)
    check_stream(stream_D, sources[0])
    chosen = _choose(impl, sources[0])
    with without_autocast(query_D.device):
        return chosen.centered_attention(query_D, sources, stream_D, key_weight_D, eps)


def depth_attention_queries(
    queries_QD: Tensor,
    sources: Sources,
    key_weights_QD: Tensor,
    *,
    eps: float = 1e-6,
    source_dim: int = 0,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mix the same sources for several queries, each source read once (phase 1, section 4.2).

    Other arguments and errors are those of `depth_attention`.

    Args:
        queries_QD: one query a row.
        key_weights_QD: their key weights.

    Returns:
        The mixes, [Q, ..., D], in the widest dtype of the sources, and the logarithm of the sum
        under each softmax, [Q, ...], float32 or float64. Both are differentiable, and a mix with
        its lse is what `merge` goes on from.
    """
    sources = as_sources(sources, source_dim)
    _check_readers(queries_QD, sources, key_weights_QD, eps)
    chosen = _choose(impl, sources[0])
    with without_autocast(queries_QD.device):
        return chosen.depth_attention_queries(queries_QD, sources, key_weights_QD, eps)


def merge(
    mix_D: Tensor,
    lse: Tensor,
    partial: Tensor | Sequence[Tensor],
    query_D: Tensor,
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Go on from a mix with more sources, as if all had been read at once (phase 2, section 4.2).

    The mix counts as one source whose logit is its `lse`; so merging is associative, and sources
    may come in any order and number.

    Args:
        mix_D: a mix of other sources for this query, [..., D].
        lse: the logarithm of the sum under its softmax, [...].
        partial: the sum of the unfinished block, [..., D], or a list of such sources.
        query_D, key_weight_D, eps, impl: as in `depth_attention`.

    Returns:
        The mix of all, [..., D], in the widest dtype of mix and sources, and its lse, [...]. Both
        are differentiable in every input.

    Raises:
        As `depth_attention`.
    """
    partials = as_sources([partial] if isinstance(partial, Tensor) else partial)
    _check_reader(query_D, partials, key_weight_D, eps)
    check_mix(mix_D, lse, partials[0])
    chosen = _choose(impl, partials[0])
    with without_autocast(query_D.device):
        return chosen.merge(mix_D, lse, partials, query_D, key_weight_D, eps)


def split_queries(
    queries_QD: Tensor,
    sources: Sequence[Tensor],
    key_weights_QD: Tensor,
    *,
    eps: float,
    impl: str | None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """`depth_attention_queries` with each query's mix and lse apart, for readers in turn.

    In training each mix then has a gradient of its own, and none is copied to stack them.
    """
    sources = as_sources(sources)
    _check_readers(queries_QD, sources, key_weights_QD, eps)
    chosen = _choose(impl, sources[0])
    with without_autocast(queries_QD.device):
        return chosen.split_queries(queries_QD, sources, key_weights_QD, eps)


def _choose(impl: str | None, source: Tensor) -> Implementation:
    name = fastest_impl(source.device, source.dtype) if impl is None else impl
    return implementation(name, source.device)


def _check_reader(query: Tensor, sources: Sequence[Tensor], key_weight: Tensor, eps: float) -> None:
    check_parameter("query_D", query, sources[0], n_queries=None)
    check_parameter("key_weight_D", key_weight, sources[0], n_queries=None)
    check_eps(eps)


def _check_readers(
    queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
) -> None:
    is_stack = isinstance(queries_QD, Tensor) and queries_QD.dim() == 2
    n_queries = queries_QD.shape[0] if is_stack else 1
    if n_queries == 0:
        raise ValueError("phase 1 needs at least one query, got none")
    check_parameter("queries_QD", queries_QD, sources[0], n_queries)
    check_parameter("key_weights_QD", key_weights_QD, sources[0], n_queries)
    check_eps(eps)
