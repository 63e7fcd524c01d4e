"""The sizes of Kimi K3 in closed form: transformers has no such model (arXiv:2607.24653)."""

from math import inf

from attnres.cost.sizes import Sizes
from attnres.layout import SUBLAYERS_PER_LAYER

DIM, N_LAYERS, VOCAB_SIZE = 7168, 93, 163840
LAYERS_PER_BLOCK = 12
N_HEADS, HEAD_DIM = 96, 128
N_FULL = N_LAYERS // 4 + 1  # every fourth layer, and the last
QUERY_RANK, KEY_VALUE_RANK, SHARED_KEY_DIM = 1536, 512, 64
DENSE_DIM, N_DENSE = 33792, 1
N_EXPERTS, N_ACTIVE, N_SHARED = 896, 16, 2
EXPERT_DIM, LATENT_DIM = 3072, 3584


def kimi_k3_sizes() -> Sizes:
    """2.78 T parameters, 104.2 B of them for a token, as published."""
    wide = N_HEADS * HEAD_DIM
    n_moe = N_LAYERS - N_DENSE
    expert = 3 * LATENT_DIM * EXPERT_DIM
    shared = 3 * DIM * EXPERT_DIM * N_SHARED + 2 * DIM * LATENT_DIM + N_EXPERTS * DIM
    always = (
        (N_LAYERS - N_FULL) * _delta_attention(wide)
        + N_FULL * _latent_attention(wide)
        + N_DENSE * 3 * DIM * DENSE_DIM
        + n_moe * shared
        + VOCAB_SIZE * DIM
    )
    return Sizes(
        dim=DIM,
        n_layers=N_LAYERS,
        n_sublayers=SUBLAYERS_PER_LAYER * N_LAYERS,
        n_params=always + n_moe * N_EXPERTS * expert + VOCAB_SIZE * DIM,
        n_active_weights=always + n_moe * N_ACTIVE * expert,
        score_width=N_HEADS * (HEAD_DIM + SHARED_KEY_DIM + HEAD_DIM),
        windows=(inf,) * N_FULL,
        n_expert_params=n_moe * N_EXPERTS * expert,
        n_routes=n_moe * N_ACTIVE,
    )


def _delta_attention(wide: int) -> int:
    """Query, key, value, output and output gate; the decay's two projections; strength; kernels."""
    return 5 * DIM * wide + HEAD_DIM * (DIM + wide) + DIM * N_HEADS + 3 * 4 * wide


def _latent_attention(wide: int) -> int:
    query = QUERY_RANK * (DIM + N_HEADS * (HEAD_DIM + SHARED_KEY_DIM))
    key_value = DIM * (KEY_VALUE_RANK + SHARED_KEY_DIM) + KEY_VALUE_RANK * 2 * wide
    return query + key_value + 2 * DIM * wide  # output, and its gate
