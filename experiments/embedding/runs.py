"""Is the gain that of an embedding which is not drowned?

The embedding is multiplied before it is read, as Gemma and Granite do; the head has the same
weights without the factor.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnres.experiment.study import Study
from attnres.residual import RESIDUALS, AttnRes, AttnResConfig
from attnres.train.recipes import small

WIDTH, UNIT = 8.0, 50.0  # sqrt(64), as Gemma; 1 / 0.02, for a root mean square of 1 at the start


class AttnResOfScaled(AttnRes):
    """Attention over depth whose first source is `scale` times the embedding."""

    scale: float

    def start(self, embed_BTD: Tensor) -> Any:
        return super().start(self.scale * embed_BTD)


@dataclass(frozen=True, kw_only=True)
class AttnResOfScaledConfig(AttnResConfig):
    scale: float

    def build(self, dim: int, n_sublayers: int) -> AttnResOfScaled:
        found = AttnResOfScaled(dim, self.layout(n_sublayers), self.eps)
        found.scale = self.scale
        return found

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        return {**super().describe(n_sublayers), "scale": self.scale}


RESIDUALS["attn_res_of_scaled"] = AttnResOfScaledConfig


def study() -> Study:
    arms = {"standard": "standard", "attn_res": "attn_res"}
    for scale in (WIDTH, UNIT):
        arms[f"standard-{scale:g}"] = f"scaled_embedding:scale={scale}"
        arms[f"attn_res-{scale:g}"] = f"attn_res_of_scaled:scale={scale}"
    rates = (1e-2, 2e-2, 4e-2)
    return Study(name="embedding", base=small(), arms=arms, learning_rates=rates, beside="attn_res")
