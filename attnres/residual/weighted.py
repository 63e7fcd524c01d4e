"""What the methods share that weigh earlier states by plain numbers, and not by a softmax."""

from collections.abc import Iterable

from torch import Tensor

from attnres.layout import check_count
from attnres.residual.gates import wide


def weighted_sum(weights: Iterable[Tensor], vectors: Iterable[Tensor]) -> Tensor:
    """sum_i w_i x_i, BTD, in float32 at least; one vector at a time, so that no stack is saved.

    A weight is one number, one a token ([..., 1]) or one a channel ([D] or BTD).
    """
    total_BTD = None
    for weight, vector_BTD in zip(weights, vectors, strict=True):
        weight = wide(weight)
        term_BTD = (weight if weight.dim() else weight.unsqueeze(0)) * vector_BTD
        total_BTD = term_BTD if total_BTD is None else total_BTD + term_BTD
    assert total_BTD is not None
    return total_BTD


def check_layers(n_sublayers: int, sublayers_per_layer: int) -> int:
    """The number of transformer layers; ValueError where sublayers do not fill them."""
    check_count("n_sublayers", n_sublayers)
    check_count("sublayers_per_layer", sublayers_per_layer)
    if n_sublayers % sublayers_per_layer:
        raise ValueError(
            f"sublayers_per_layer={sublayers_per_layer} does not divide {n_sublayers} sublayers"
        )
    return n_sublayers // sublayers_per_layer


def check_sources(n_found: int, n_expected: int, depth: int) -> None:
    """ValueError for a state that is not the one at `depth`."""
    if n_found != n_expected:
        raise ValueError(
            f"the state has {n_found} sources, at depth {depth} there are {n_expected}: write the "
            "output of every sublayer once, in order"
        )
