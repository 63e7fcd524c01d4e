"""The command that prints a layout."""

from dataclasses import asdict, dataclass
from typing import Annotated

from attnres.arguments import parse
from attnres.cost.kimi_k3 import LAYERS_PER_BLOCK, N_LAYERS
from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout
from attnres.residual import AttnResConfig

RELEASED = {"kimi_k3": (N_LAYERS, LAYERS_PER_BLOCK)}


def layout(arguments: list[str]) -> None:
    """Print which sublayer closes a block and what every reader sees.

    attnres layout kimi_linear_48b
    attnres layout --layers 12 --n-blocks 8
    """
    import tyro

    @dataclass(frozen=True)
    class Layout:
        model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = ""
        """a recipe whose residual has blocks, or kimi_k3"""
        layers: int = 0
        """transformer layers, of two sublayers each: attention and MLP"""
        sublayers_per_block: int | None = None
        """block size as the paper and FLA count it"""
        layers_per_block: int | None = None
        """block size as Kimi K3 and Megatron count it"""
        n_blocks: int | None = None
        """exactly so many blocks; without any of the three: Full AttnRes"""

    chosen = asdict(parse(Layout, "layout", layout, arguments))
    model, n_layers = chosen.pop("model"), chosen.pop("layers")
    if model:
        if n_layers or any(value is not None for value in chosen.values()):
            raise ValueError(f"{model} has a layout of its own: give no layers and no blocks")
        print(_layout_of(model))
        return
    if n_layers < 1:
        raise ValueError(f"--layers must be positive, got {n_layers}")
    print(AttnResConfig(**chosen).layout(n_layers * SUBLAYERS_PER_LAYER))


def _layout_of(name: str) -> BlockLayout:
    if name in RELEASED:
        n_layers, layers_per_block = RELEASED[name]
        n_sublayers = n_layers * SUBLAYERS_PER_LAYER
        return BlockLayout.of(n_sublayers, layers_per_block=layers_per_block)
    from attnres.train.recipes import RECIPES

    if name not in RECIPES:
        known = ", ".join([*RECIPES, *RELEASED])
        raise ValueError(f"no recipe {name!r}; there are: {known}")
    model = RECIPES[name]().model
    if not isinstance(model.residual, AttnResConfig):
        raise ValueError(f"the residual of {name} has no blocks")
    return model.residual.layout(model.n_layers * SUBLAYERS_PER_LAYER)
