"""Functions of tensors: no parameters, no state."""

from attnres.ops.backends import backends, fastest_impl
from attnres.ops.depth_attention import (
    centered_attention,
    depth_attention,
    depth_attention_queries,
    depth_weights,
    merge,
    split_queries,
)
from attnres.ops.gradient_sink import own

__all__ = [
    "backends",
    "centered_attention",
    "depth_attention",
    "depth_attention_queries",
    "depth_weights",
    "fastest_impl",
    "merge",
    "own",
    "split_queries",
]
