"""The running sum from a multiple of the embedding on: by hand, its matrix and its border."""

import pytest
import torch
from by_hand import DIM, assert_reads, assert_starts_as_it_says, branches, embedding

from attnres.residual import ScaledEmbedding, ScaledEmbeddingConfig
from attnres.residual.mixing import mixing_matrix


@pytest.mark.parametrize(("scale", "expected"), [(None, DIM**0.5), (-3, -3), (0.0, 0.0)])
def test_recurrence_by_hand(scale, expected):
    h_TD = expected * embedding()
    reads = [h_TD]
    for branch in branches(3):
        h_TD = h_TD + branch(h_TD)
        reads.append(h_TD)
    assert_reads(ScaledEmbedding(DIM, 3, scale), reads)


def test_mixing_has_the_scale_in_its_first_column():
    mixing_LL = mixing_matrix(ScaledEmbedding(DIM, 2, 4.0), list(torch.randn(3, 1, DIM)))[..., 0]
    expected = torch.tensor([[4, 0, 0], [4, 1, 0], [4, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(mixing_LL, expected)


@pytest.mark.parametrize(("scale", "start"), [(1, "standard"), (50.0, "other"), (None, "other")])
def test_only_a_scale_of_one_is_the_standard_model(scale, start):
    assert_starts_as_it_says(ScaledEmbeddingConfig(scale=scale).build(DIM, 4), start)


@pytest.mark.parametrize("scale", [float("inf"), "two", True])
def test_a_scale_that_is_no_number_is_refused(scale):
    with pytest.raises(ValueError, match=f"scale must be a finite number, got {scale!r}"):
        ScaledEmbeddingConfig(scale=scale)
