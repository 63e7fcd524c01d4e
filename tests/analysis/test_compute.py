"""Training compute by hand, and that an empty model of the same sizes gives the same."""

import pytest

from attnres.analysis.compute import training_compute
from attnres.residual import AttnResConfig
from attnres.train.recipe import ModelConfig

MODEL = ModelConfig(dim=8, n_layers=2, n_heads=2, n_kv_heads=1, mlp_dim=20)


def test_compute_by_hand():
    """Weights: a layer 8 x 8 query and out, 8 x 4 key and value, 3 x 8 x 20; head 8 x 50."""
    found = training_compute(MODEL, vocab_size=50, seq_len=3, n_tokens=100)
    n_weights = 2 * (2 * 64 + 2 * 32 + 480) + 400
    assert found.weights == 3 * 100 * 2 * n_weights
    # 16 numbers of query and value a layer, at 2 positions on average
    assert found.attention == 3 * 100 * 2 * 16 * 2 * 2
    assert found.total("weights") == found.weights
    assert found.total("attention") == found.weights + found.attention
    assert found.total("all") == found.weights + found.attention + found.residual


def test_attention_over_depth_counts_only_in_all():
    full = ModelConfig(
        dim=8, n_layers=2, n_heads=2, n_kv_heads=1, mlp_dim=20, residual=AttnResConfig()
    )
    mine, its = (training_compute(each, 50, 3, 100) for each in (MODEL, full))
    assert mine.total("attention") == its.total("attention")
    assert mine.residual < its.residual


def test_another_counting_is_refused():
    with pytest.raises(ValueError, match="no counting 'mine'; there are: weights, attention, all"):
        training_compute(MODEL, 50, 3, 100).total("mine")  # pyright: ignore[reportArgumentType]
