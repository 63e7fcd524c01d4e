"""The standard residual from a multiple of the embedding on.

    h_1 = s v_0,   h_{l+1} = h_l + f_l(h_l)

Gemma has s = sqrt(D), Granite a number of its own (`embedding_multiplier`). Beside a method whose
reads choose the embedding by itself it is the control: it says what of a gain comes from an
embedding that later outputs do not drown. The head has the embedding's weights without the factor.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnres.layout import check_count
from attnres.ops.border import check_finite
from attnres.residual.base import Start
from attnres.residual.standard import RunningSum


class ScaledEmbedding(RunningSum):
    """The sum starts as the embedding times a fixed number.

    Args:
        dim: width of the hidden state, D.
        n_sublayers: number of sublayers.
        scale: s above; None takes the square root of D.

    Raises:
        ValueError: a size that is not positive, a scale that is not finite.
    """

    def __init__(self, dim: int, n_sublayers: int, scale: float | None = None):
        super().__init__(n_sublayers)
        check_count("dim", dim)
        self.scale = math.sqrt(dim) if scale is None else scale
        check_finite("scale", self.scale)

    def start(self, embed_BTD: Tensor) -> Tensor:
        return self.scale * embed_BTD

    @property
    def starts_as(self) -> Start:
        return "standard" if self.scale == 1 else "other"


@dataclass(frozen=True, kw_only=True)
class ScaledEmbeddingConfig:
    """`scale=1` is the standard model; without it, the scale is the square root of the width."""

    scale: float | None = None

    def __post_init__(self):
        if self.scale is not None:
            check_finite("scale", self.scale)

    def build(self, dim: int, n_sublayers: int) -> ScaledEmbedding:
        return ScaledEmbedding(dim, n_sublayers, self.scale)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"scale": self.scale}
