"""Functions of tensors: no parameters, no state."""

from attnres.ops.depth_attention import depth_attention, depth_weights, fastest_impl

__all__ = ["depth_attention", "depth_weights", "fastest_impl"]
