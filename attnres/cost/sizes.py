"""What a decoder multiplies a token with: its weights, and what attention adds."""

from dataclasses import dataclass
from math import inf

from attnres.layout import SUBLAYERS_PER_LAYER, check_count, check_n_sublayers

MOST_WIDTH = 1 << 24  # of any size but layers: squared, it still is a number of bytes

BACKWARD = 2  # times the forward: gradients of inputs, and of weights


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a causal LM without what its residual adds."""

    dim: int
    n_layers: int
    n_sublayers: int
    n_params: int
    n_active_weights: int  # that a token is multiplied with, the head among them
    score_width: int  # numbers of query and of value a token, over the heads of one layer
    windows: tuple[float, ...]  # positions that each layer with softmax attention sees at most
    n_expert_params: int = 0  # of routed experts
    n_routes: int = 0  # experts that a token is sent to, over all layers

    def forward_flops(self, seq_len: int) -> int:
        """A token, on average over a sequence; a multiplication and an addition are two."""
        check_count("seq_len", seq_len)
        return 2 * self.n_active_weights + self.attention_flops(seq_len)

    def attention_flops(self, seq_len: int) -> int:
        """Scores and their weighted sum, a token, on average over a causal sequence."""
        positions = sum(_mean_positions(seq_len, window) for window in self.windows)
        return round(2 * self.score_width * positions)


def decoder_sizes(
    *,
    dim: int,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int,
    vocab_size: int,
    is_tied: bool = True,
) -> Sizes:
    """A Llama-like decoder: RMSNorms, attention with shared key heads, a gated MLP, no biases.

    Raises:
        ValueError: a size that is no positive integer.
    """
    check_count("n_heads", n_heads)
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    head_dim = dim // n_heads if head_dim is None else head_dim
    counts = {"dim": dim, "n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads,
              "head_dim": head_dim, "mlp_dim": mlp_dim, "vocab_size": vocab_size}  # fmt: skip
    for name, value in counts.items():
        check_count(name, value)
        if value > MOST_WIDTH:
            raise ValueError(f"{name} is at most {MOST_WIDTH}, got {value}")
    check_n_sublayers(SUBLAYERS_PER_LAYER * n_layers)
    attention = 2 * dim * head_dim * (n_heads + n_kv_heads)
    layers = n_layers * (attention + 3 * dim * mlp_dim)
    vocabulary = vocab_size * dim
    norms = (SUBLAYERS_PER_LAYER * n_layers + 1) * dim
    return Sizes(
        dim=dim,
        n_layers=n_layers,
        n_sublayers=SUBLAYERS_PER_LAYER * n_layers,
        n_params=layers + norms + vocabulary * (1 if is_tied else 2),
        n_active_weights=layers + vocabulary,
        score_width=2 * n_heads * head_dim,
        windows=(inf,) * n_layers,
    )


def _mean_positions(seq_len: int, window: float) -> float:
    """Positions that a token sees on average, itself among them."""
    seen = min(window, seq_len)
    return (seen * (seen + 1) / 2 + (seq_len - seen) * seen) / seq_len
