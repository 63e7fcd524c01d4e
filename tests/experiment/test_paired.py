"""Student's interval against tables, and pairs that take the seed out."""

import math
import statistics

import pytest

from attnres.experiment.paired import paired_difference, student_quantile, student_within

TABLE = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 9: 2.26216, 10: 2.22814}
"""Two-sided 95 %, by degrees of freedom."""


@pytest.mark.parametrize(("n_free", "expected"), TABLE.items())
def test_quantiles_are_those_of_the_tables(n_free, expected):
    assert student_quantile(0.95, n_free) == pytest.approx(expected, rel=1e-5)


def test_many_degrees_of_freedom_come_to_the_normal_distribution():
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert student_quantile(0.95, 100_000) == pytest.approx(normal, rel=1e-4)
    assert student_within(0.0, 3) == 0


def test_the_difference_takes_out_what_a_seed_does_to_both():
    found = paired_difference([1.1, 5.2, 9.3], [1.0, 5.0, 9.0])
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-5)
    assert found.n_pairs == 3


def test_one_pair_has_no_interval():
    found = paired_difference([2.0], [1.0])
    assert (found.mean, found.half_width, found.n_pairs) == (1.0, None, 1)


def test_pairs_must_match():
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])
