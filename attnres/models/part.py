"""Some of a model's sublayers, where the others run elsewhere: on another rank of a pipeline.

    left: list[Any] = []
    model.base_model(input_ids, part=Part(0, 5, left=left))               # state after sublayer 4
    model(inputs_embeds=x_BTD, labels=tokens_BT, part=Part(5, 8, left[0]))            # and the loss

The model's own loop runs, masks and rotary embeddings and all; layers outside the part hand on what
they are given. Where the part begins inside the model, its state takes the place of the hidden
tensor, of which the loop then needs nothing but shape, dtype and device (`inputs_embeds`). Where it
ends inside, the state leaves by a list that belongs to one call, and neither norm nor head run.
"""

import sys
from typing import Any, NamedTuple

from torch import Tensor


class Part(NamedTuple):
    """Sublayers `start` to `stop` - 1."""

    start: int
    stop: int
    state: Any = None  # of the residual, before the sublayer `start`; none where it is the first
    left: list[Any] | None = None  # given the state after the last; None where the model ends there

    def meets(self, first_depth: int, n_sublayers: int) -> bool:
        """Whether any of a layer's sublayers belong to it."""
        return first_depth < self.stop and self.start < first_depth + n_sublayers

    def left_with(self, state: Any, stop: int) -> Any:
        """What the layer that ends before the depth `stop` returns."""
        if self.left is None or stop < self.stop:
            return state
        return Leaving(state, self.left)


WHOLE = Part(0, sys.maxsize)


class Leaving(NamedTuple):
    """A state on its way out of the model's loop, past the layers that run elsewhere."""

    state: Any
    left: list[Any]

    def leave(self) -> Tensor:
        """Give the state, and its first tensor for the loop, which hands one on."""
        self.left.append(self.state)
        found = self.state
        while not isinstance(found, Tensor):
            found = found[0]
        return found
