"""Attention over depth in place of the residual sum (arXiv:2603.15031).

What is imported here needs torch alone; `attnres.models` needs the extra `hf`, `attnres.train` the
extra `train`, `attnres.analysis` the extra `report`.
"""

from attnres.layout import BlockLayout
from attnres.ops import depth_attention, depth_weights
from attnres.residual import AttnRes, Residual, Standard

__all__ = [
    "AttnRes",
    "BlockLayout",
    "Residual",
    "Standard",
    "depth_attention",
    "depth_weights",
]
