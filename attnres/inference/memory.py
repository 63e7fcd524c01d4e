"""The most bytes of depth sources that were alive at once, by the lifetime of their storage."""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves


class SourceMemory:
    """Counts, while it is entered, the sources that a residual method keeps.

        with SourceMemory(model.residual) as memory:
            model(tokens_BT)
        print(memory.peak_bytes)

    Sources are the embedding and the finished blocks, each counted as long as its memory is held,
    by whomever; of a method without blocks all tensors of its state. `attnres.cost.prefill_bytes`
    predicts the figure.
    """

    def __init__(self, residual: Any):
        self.residual = residual
        self.peak_bytes = 0
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def live_bytes(self) -> int:
        self._held = {k: held for k, held in self._held.items() if not held[0].expired()}
        return sum(n_bytes for _, n_bytes in self._held.values())

    def __enter__(self) -> "SourceMemory":
        start, write = self.residual.start, self.residual.write
        self.residual.start = lambda embed_BTD: self._seen(start(embed_BTD))
        self.residual.write = lambda *given: self._seen(write(*given))
        return self

    def __exit__(self, *_: object) -> None:
        del self.residual.start, self.residual.write

    def _seen(self, state: Any) -> Any:
        for source in tree_leaves(getattr(state, "blocks", state)):
            if isinstance(source, Tensor):
                storage = source.untyped_storage()
                self._held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return state
