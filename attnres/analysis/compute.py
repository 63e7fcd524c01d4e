"""Training compute C of a model, told apart by what it goes into.

C counts multiplications and additions apart: a token forward is 2 a weight, 2 (query + value) a
position attended to, and what the residual does; the backward is twice that. The embedding is a
look-up and counts nothing; the head counts.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from attnres.cost import count, decoder_sizes
from attnres.cost.sizes import BACKWARD
from attnres.layout import SUBLAYERS_PER_LAYER
from attnres.train.recipe import ModelConfig

Counting = Literal["weights", "attention", "all"]
WORDS: dict[Counting, str] = {
    "weights": "C counts products with weights alone, the head among them",
    "attention": "C counts products with weights, and attention's scores and sums",
    "all": "C counts products with weights, attention, and what the residual does, done plainly",
}


@dataclass(frozen=True, kw_only=True)
class Compute:
    """FLOPs of a whole run."""

    weights: float
    attention: float
    residual: float

    def total(self, counting: Counting) -> float:
        """Of "weights" alone, of these and "attention", or of "all"."""
        if counting not in get_args(Counting):
            raise ValueError(f"no counting {counting!r}; there are: {', '.join(WORDS)}")
        parts = {
            "weights": self.weights,
            "attention": self.weights + self.attention,
            "all": self.weights + self.attention + self.residual,
        }
        return parts[counting]


def training_compute(model: ModelConfig, vocab_size: int, seq_len: int, n_tokens: int) -> Compute:
    """Of `n_tokens` in sequences of `seq_len`, causal attention over whole sequences."""
    sizes = decoder_sizes(
        dim=model.dim,
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        mlp_dim=model.mlp_dim,
        vocab_size=vocab_size,
        is_tied=model.tie_embeddings,
    )
    n_sublayers = SUBLAYERS_PER_LAYER * model.n_layers
    residual = count(model.residual, model.dim, n_sublayers).flops * n_sublayers
    passes = (1 + BACKWARD) * n_tokens
    return Compute(
        weights=2.0 * sizes.n_active_weights * passes,
        attention=float(sizes.attention_flops(seq_len)) * passes,
        residual=residual * passes,
    )
