"""Which chunks of a pipeline need each parameter of a model.

A layer's sublayers belong to the chunks that run them, a reader of depth to the chunk that reads
with it, the embeddings to the first chunk, the final norm and the head to the last. What serves
several of these, as an embedding that is tied to the head, is needed by each. A parameter whose
place cannot be told is needed by more than may use it: what a layer holds beside its sublayers by
all chunks of that layer, what another residual method learns by all.
"""

from collections.abc import Sequence
from typing import Any

from attnres.distributed.chunks import Chunk
from attnres.models.families import family_of
from attnres.models.sublayers import Branch, Sublayer
from attnres.residual.depth_reader import AttendsOverDepth


def chunks_of_parameters(model: Any, chunks: Sequence[Chunk]) -> dict[str, frozenset[int]]:
    """The chunks that need each parameter, by every name that it has.

    Args:
        model: an `AttnResForCausalLM`, whose values are not looked at.
        chunks: of its pipeline, in order.
    """
    places = _Places(model, chunks)
    named = list(model.named_parameters(remove_duplicate=False))
    needed: dict[int, set[int]] = {}
    for name, parameter in named:
        needed.setdefault(id(parameter), set()).update(places.chunks_of(name))
    return {name: frozenset(needed[id(parameter)]) for name, parameter in named}


def chunks_of_buffers(model: Any, chunks: Sequence[Chunk]) -> dict[str, frozenset[int]]:
    """The chunks that need each buffer of a layer; others, as of rotary embeddings, all need."""
    places = _Places(model, chunks)
    names = [name for name, _ in model.named_buffers() if name.startswith(places.layers)]
    return {name: frozenset(places.chunks_of(name)) for name in names}


class _Places:
    """Where in a pipeline the name of a parameter belongs."""

    def __init__(self, model: Any, chunks: Sequence[Chunk]):
        self.family = family_of(model.config.text_config)
        self.has_readers = isinstance(model.residual, AttendsOverDepth)
        self.base = f"{model.base_model_prefix}."
        self.layers = f"{self.base}{self.family.layers}."
        self.final_norm = f"{self.base}{self.family.final_norm}."
        self.chunks = chunks

    def chunks_of(self, name: str) -> set[int]:
        first, last = self.chunks[0].index, self.chunks[-1].index
        if name.startswith("residual."):
            return self._of_residual(name.removeprefix("residual."))
        if name.startswith(self.layers):
            return self._of_layer(name.removeprefix(self.layers))
        if name.startswith(self.base) and not name.startswith(self.final_norm):
            return {first}
        return {last}

    def _of_residual(self, name: str) -> set[int]:
        if not self.has_readers or not name.startswith("readers."):
            return {chunk.index for chunk in self.chunks}
        return {self._at(int(name.split(".")[1]))}  # readers.3.query

    def _of_layer(self, name: str) -> set[int]:
        layer, part, *_ = name.split(".")
        sublayers = self.family.sublayers
        used = [i for i, sublayer in enumerate(sublayers) if part in _modules(sublayer)]
        first_depth = int(layer) * len(sublayers)
        return {self._at(first_depth + i) for i in used or range(len(sublayers))}

    def _at(self, depth: int) -> int:
        """The chunk that reads at a depth."""
        return next((c.index for c in self.chunks if depth < c.stop), self.chunks[-1].index)


def _modules(sublayer: Sublayer) -> set[str]:
    """Names in the layer of all that a sublayer calls."""
    if isinstance(sublayer, Branch):
        return {sublayer.part, *sublayer.norms, *([sublayer.after] if sublayer.after else [])}
    own = {*sublayer.norms, *([sublayer.norm] if sublayer.norm else [])}
    return _modules(sublayer.attention) | _modules(sublayer.mlp) | own
