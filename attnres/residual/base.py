"""The contract of a residual method: how sublayers are joined over depth.

    state = residual.start(embed_BTD)
    for depth, sublayer in enumerate(sublayers):
        h_BTD, state = residual.read(state, depth)
        state = residual.write(state, depth, sublayer(h_BTD))
    logits_BTV = head(norm(residual.finish(state)))

No model names the method it runs. The state is a tensor or a named tuple of tensors, so that it can
be checkpointed, cut at a pipeline stage and traced; nothing in it is changed in place, and a
sublayer must not change its input in place, which may be part of the state.
"""

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor, nn

State = TypeVar("State")


class Parts(NamedTuple):
    """A sublayer's output in two parts, each BTD, that are added to the stream in turn.

    The order of additions decides the last bit. Where attention and MLP of one input are added one
    after the other, their sum is another tensor.
    """

    first_BTD: Tensor
    second_BTD: Tensor


Output = Tensor | Parts


def check_depth(depth: int, last: int) -> None:
    """ValueError for a depth that is not from 0 to `last`."""
    if not 0 <= depth <= last:
        raise ValueError(f"depth must be from 0 to {last}, got {depth}")


def check_output(out_BTD: Tensor, like_BTD: Tensor, depth: int) -> None:
    """ValueError for a sublayer's output that is no tensor of the embedding's shape."""
    if not isinstance(out_BTD, Tensor):
        kind = type(out_BTD).__name__
        raise ValueError(f"the output of sublayer {depth} must be a tensor, got a {kind}")
    if out_BTD.shape != like_BTD.shape:
        raise ValueError(
            f"the output of sublayer {depth} has shape {list(out_BTD.shape)}, the embedding "
            f"{list(like_BTD.shape)}"
        )


def parts_of(out_BTD: Output, like_BTD: Tensor, depth: int) -> tuple[Tensor, ...]:
    """What a sublayer's output adds, in turn; checked, and in the dtype of the sum."""
    parts = out_BTD if isinstance(out_BTD, Parts) else (out_BTD,)
    for part_BTD in parts:
        check_output(part_BTD, like_BTD, depth)
    return tuple(part_BTD.to(like_BTD.dtype) for part_BTD in parts)


class Residual(nn.Module, ABC, Generic[State]):
    """Abstract; every method is a final class.

    BTD stands for any leading shape and the model width. All tensors BTD of a state have the dtype
    of the embedding: a sublayer's output is cast to it when it is written.
    """

    n_sublayers: int

    @abstractmethod
    def start(self, embed_BTD: Tensor) -> State:
        """State before the first sublayer."""

    @abstractmethod
    def read(self, state: State, depth: int) -> tuple[Tensor, State]:
        """Input of the sublayer at `depth`, BTD, and the state that goes on."""

    @abstractmethod
    def write(self, state: State, depth: int, out_BTD: Output) -> State:
        """State after the sublayer at `depth`, whose output is `out_BTD`."""

    @abstractmethod
    def finish(self, state: State) -> Tensor:
        """Input of the final norm, BTD, after the last sublayer."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Set every parameter to its start value, whatever else has initialised the model.

        By functions of `torch.nn.init`: transformers has these skip what a checkpoint gave.
        """

    def stream(self, state: State) -> Tensor:
        """The sum that the last sublayer's output was added to, BTD (optional, for analysis)."""
        raise NotImplementedError(f"{type(self).__name__} has no running sum")

    def weights(self, state: State, depth: int) -> Tensor:
        """Weight of each source in the read at `depth`, [S, ...] (optional, for analysis).

        `depth` equal to `n_sublayers` is the output read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depth weights")
