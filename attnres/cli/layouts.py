"""The command that prints a layout."""

from dataclasses import asdict, dataclass

from attnres.arguments import parse
from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.residual import AttnResConfig


@dataclass(frozen=True)
class Layout:
    layers: int
    """transformer layers, of two sublayers each: attention and MLP"""
    sublayers_per_block: int | None = None
    """block size as the paper and FLA count it"""
    layers_per_block: int | None = None
    """block size as Kimi K3 and Megatron count it"""
    n_blocks: int | None = None
    """exactly so many blocks; without any of the three: Full AttnRes"""


def layout(arguments: list[str]) -> None:
    """Print which sublayer closes a block and what every reader sees."""
    chosen = asdict(parse(Layout, "layout", layout, arguments))
    n_layers = chosen.pop("layers")
    if n_layers < 1:
        raise ValueError(f"layers must be positive, got {n_layers}")
    print(AttnResConfig(**chosen).layout(n_layers * SUBLAYERS_PER_LAYER))
