"""What readers and sources are called on the page."""

from typing import Any

from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout
from attnres.residual import Window

Named = tuple[str, str]  # a source: its name, and what it is

EMBEDDING = "the embedding"


def reader_names(sublayers: list[str]) -> list[str]:
    """What each reader comes before."""
    return [*sublayers, "the final norm"]


def sublayer_names(n_sublayers: int, config: Any) -> list[str]:
    """Attention and MLP by layer, in the order of depth."""
    if n_sublayers != SUBLAYERS_PER_LAYER * config.text_config.num_hidden_layers:
        return [f"sublayer {depth}" for depth in range(n_sublayers)]
    kinds = ("attention", "MLP")
    layers = range(n_sublayers // SUBLAYERS_PER_LAYER)
    return [f"{kind} of layer {layer}" for layer in layers for kind in kinds]


def output_names(sublayers: list[str]) -> list[list[Named]]:
    """The columns of a mixing matrix, by reader: the embedding, then every output so far."""
    names = [("emb", EMBEDDING), *((str(i), name) for i, name in enumerate(sublayers, start=1))]
    return [names[: reader + 1] for reader in range(len(names))]


def source_names(residual: Any, sublayers: list[str]) -> list[list[Named]]:
    """The sources of every reader of a method with depth weights."""
    readers = range(residual.n_sublayers + 1)
    if isinstance(residual, Window):
        return [_in_window(residual, reader, sublayers) for reader in readers]
    return [_in_layout(residual.layout, reader, sublayers) for reader in readers]


def column_names(sources: list[list[Named]]) -> list[str]:
    """The sources of all readers: the oldest first, what is not the same for all of them last."""
    places = {"b0": 0, "older": 1, "partial": 3}
    names = dict.fromkeys(name for row in sources for name, _ in row)
    return sorted(names, key=lambda name: places.get(name, 2))


def _in_layout(layout: BlockLayout, reader: int, sublayers: list[str]) -> list[Named]:
    meanings, start = [EMBEDDING], 0
    for size in layout.sizes:
        meanings.append(_span(sublayers, start, start + size))
        start += size
    names = layout.source_names(reader)
    if names[-1] == "partial":
        begun = max((end + 1 for end in layout.ends if end < reader), default=0)
        meanings[len(names) - 1 :] = [f"so far: {_span(sublayers, begun, reader)}"]
    return list(zip(names, meanings, strict=False))


def _in_window(residual: Window, reader: int, sublayers: list[str]) -> list[Named]:
    first = max(reader - residual.n_last, 0)
    older = [("older", _span(sublayers, 0, first))] if first and residual.remainder else []
    last = [(f"b{i + 1}", sublayers[i]) for i in range(first, reader)]
    return [("b0", EMBEDDING), *older, *last]


def _span(sublayers: list[str], start: int, end: int) -> str:
    """The sublayers from depth `start` on, `end` excluded."""
    return sublayers[start] if end == start + 1 else f"{sublayers[start]} to {sublayers[end - 1]}"
