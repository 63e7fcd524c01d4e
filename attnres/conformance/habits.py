"""Mistakes of behaviour: the numbers may be right, and what uses them goes wrong all the same."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from attnres.conformance.mistake import Mistake
from attnres.conformance.op_steps import RIGHT

_habit = partial(Mistake, part="habit", steps={})
HABITS = (
    _habit(
        name="changes_inputs",
        what="An input is changed in place, such as a sublayer's output that a sum is added to.",
        seen_by=(
            "Whoever reads that source again, at a later depth, in a recomputed forward or in the "
            "backward, gets other numbers."
        ),
        mend="Add out of place: total = total + output.",
    ),
    _habit(
        name="answers_change",
        what="The same question asked again has another answer: something is kept between calls.",
        seen_by=(
            "Whoever calls a model twice, after an error, at another batch size or in a second "
            "thread."
        ),
        mend="Keep the sources in a state that starts anew with each forward pass.",
    ),
    _habit(
        name="float32_arithmetic",
        what="Float64 sources are computed in float32.",
        seen_by="Whoever runs gradcheck, or holds other code to this one; models do not notice.",
        mend="Compute in float32 or wider: torch.promote_types(dtype, torch.float32).",
    ),
)


def changes_inputs(
    query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
) -> Tensor:
    mix_D = RIGHT(query_D, sources, key_weight_D, eps)
    with torch.no_grad():
        sources[-1].add_(1)
    return mix_D


def answers_change() -> Callable[[Tensor, Sequence[Tensor], Tensor, float], Tensor]:
    """An op that still holds the sources of the call before."""
    kept: list[Tensor] = []

    def op(query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float) -> Tensor:
        fitting = [x for x in kept if x.shape == sources[0].shape and x.dtype == sources[0].dtype]
        kept[:] = [source.detach() for source in sources]
        return RIGHT(query_D, [*fitting, *sources], key_weight_D, eps)

    return op
