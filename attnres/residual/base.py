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
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

State = TypeVar("State")


class Ways(NamedTuple):
    """What an attention sublayer reads where query, key and value each have a mix, BTD."""

    query_BTD: Tensor
    key_BTD: Tensor
    value_BTD: Tensor


Mix = Tensor | Ways


def through(mix: Mix, norm: Callable[[Tensor], Tensor]) -> Mix:
    """Each way through the norm."""
    return Ways(*map(norm, mix)) if isinstance(mix, Ways) else norm(mix)


Start = Literal["standard", "multiple", "other"]


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


def whole(out_BTD: Output, like_BTD: Tensor, depth: int) -> Tensor:
    """A sublayer's output, of its parts; checked, and in the dtype of the stream."""
    first_BTD, *others = parts_of(out_BTD, like_BTD, depth)
    for part_BTD in others:
        first_BTD = first_BTD + part_BTD
    return first_BTD


def check_sources(n_found: int, n_expected: int, depth: int) -> None:
    """ValueError for a state that is not the one at `depth`."""
    if n_found != n_expected:
        raise ValueError(
            f"the state has {n_found} sources, at depth {depth} there are {n_expected}: write the "
            "output of every sublayer once, in order"
        )


class Traffic(NamedTuple):
    """Vectors of D numbers a token that a fused implementation moves, the sublayer's own apart.

    `n_read` and `n_written` count a source that serves as key and as value once. Scalars a token
    are left out.
    """

    n_read: float
    n_written: float

    @property
    def total(self) -> float:
        return self.n_read + self.n_written


class Tuning(NamedTuple):
    """Parameters of a residual that an optimiser treats alike."""

    names: tuple[str, ...]  # as in `named_parameters`
    lr_scale: float = 1.0  # over the learning rate of the model
    is_decayed: bool = False


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
    def read(self, state: State, depth: int) -> tuple[Any, State]:
        """Input of the sublayer at `depth`, BTD, and the state that goes on.

        The input is a tensor, or `Ways` where `has_ways(depth)`.
        """

    def read_normed(
        self, state: State, depth: int, norm: Callable[[Tensor], Tensor]
    ) -> tuple[Any, State]:
        """As `read`, through the norm that the sublayer begins with."""
        mix, state = self.read(state, depth)
        return through(mix, norm), state

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

    @property
    def starts_as(self) -> Start:
        """What every read is with the parameters that `reset_parameters` sets.

        "standard": the sum of all outputs before it, as in `Standard`, to rounding. "multiple":
        that sum times a positive number, which a norm takes away, up to its epsilon. "other":
        neither, so that a pretrained model would be thrown off.
        """
        return "other"

    def is_untrained(self) -> bool:
        """Whether every query is zero, so that depth weights say nothing of what is read."""
        return False

    def stream(self, state: State) -> Tensor:
        """The sum that the last sublayer's output was added to, BTD (optional, for analysis)."""
        raise NotImplementedError(f"{type(self).__name__} has no running sum")

    def weights(self, state: State, depth: int) -> Tensor:
        """Weight of each source in the read at `depth`, [S, ...] (optional, for analysis).

        `depth` equal to `n_sublayers` is the output read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depth weights")

    def has_ways(self, depth: int) -> bool:
        """Whether the sublayer at `depth` is an attention that gets `Ways`."""
        return False

    def mixing(self, state: State, depth: int) -> tuple[Tensor, State]:
        """Row of the depth mixing matrix, [L+1, ...], and the state that goes on, as in `read`.

            h_l = sum_{i<l} M[l, i] v_i                        arXiv:2603.15031, section 6

        v_0 is the embedding, `depth` equal to `n_sublayers` the output read. The state has
        coordinates: whatever was started or written with is `with_coordinate`. Where a read has
        several ways, the row is that of the values; where channels have weights of their own, it is
        the mean over channels. Optional: a method that mixes channels refuses.
        """
        raise NotImplementedError(f"{type(self).__name__} has no depth mixing matrix of scalars")

    def traffic(self, depth: int) -> Traffic:
        """What reading and writing at `depth` must move (optional, for the cost model)."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it moves")

    def tuning(self) -> tuple[Tuning, ...]:
        """How its parameters are trained; each is named once."""
        names = tuple(name for name, _ in self.named_parameters())
        return (Tuning(names),) if names else ()


@runtime_checkable
class ResidualConfig(Protocol):
    """A frozen dataclass of plain values that builds a residual method."""

    def build(self, dim: int, n_sublayers: int) -> Residual[Any]:
        """The method over `n_sublayers` sublayers of width `dim`."""
        ...

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape, as JSON."""
        ...
