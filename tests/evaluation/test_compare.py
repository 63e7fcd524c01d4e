"""Paired differences: known cases, coverage by simulation, and what may not be compared."""

from dataclasses import replace

import numpy as np
import pytest
from scored_results import scored

from attnres.evaluation.compare import (
    compare,
    over_pairs,
    overall,
    overall_over_pairs,
    paired,
    sign_test,
)
from attnres.evaluation.page import notes_on_pairs


@pytest.mark.parametrize(
    ("n_higher", "n_lower", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (9, 1, 22 / 1024), (0, 8, 2 / 256), (1, 1, 1.0)],
)
def test_the_sign_test_has_its_known_values(n_higher, n_lower, p):
    assert sign_test(n_higher, n_lower) == pytest.approx(p, rel=1e-12)
    assert sign_test(n_lower, n_higher) == sign_test(n_higher, n_lower)


def test_the_sign_test_of_many_questions_neither_overflows_nor_vanishes():
    assert sign_test(5000, 5000) == 1.0
    assert sign_test(5300, 4700) == pytest.approx(2.1e-9, rel=0.1)
    assert sign_test(10000, 0) == 0.0


def test_scores_of_zero_and_one_are_counted():
    found = paired([1, 1, 0, 0, 1], [0, 1, 1, 0, 0])
    assert found.mean == pytest.approx(0.2)
    assert (found.n_higher, found.n_lower, found.n_same) == (2, 1, 2)
    assert found.low < 0 < found.high


def test_without_a_pair_that_differs_the_interval_is_not_empty():
    narrow, wide = paired([1.0] * 1000, [1.0] * 1000), paired([0.0] * 10, [0.0] * 10)
    assert 0 < narrow.high < 0.005 < wide.high
    assert narrow.p == wide.p == 1.0


def test_the_order_of_the_two_changes_the_sign_alone():
    rng = np.random.default_rng(0)
    a_N, b_N = rng.normal(size=(2, 60))
    one, two = paired(list(a_N), list(b_N)), paired(list(b_N), list(a_N))
    assert one.mean == -two.mean
    assert one.low == pytest.approx(-two.high, abs=0.02)
    assert (one.n_higher, one.p) == (two.n_lower, two.p)


def coverage(draw, n_trials=300) -> float:
    """How many of the intervals hold the true difference, 0.1."""
    rng = np.random.default_rng(1)
    found = [paired(*map(list, draw(rng))) for _ in range(n_trials)]
    return sum(each.low <= 0.1 <= each.high for each in found) / n_trials


def test_intervals_of_scores_of_zero_and_one_hold_the_truth_as_often_as_they_say():
    def draw(rng):
        both_N = rng.random(80)
        return (both_N < 0.4).astype(float), (both_N < 0.3).astype(float)

    assert 0.92 <= coverage(draw) <= 1.0


def test_intervals_of_other_scores_hold_the_truth_as_often_as_they_say():
    def draw(rng):
        shared_N = rng.normal(size=60)
        return shared_N + 0.1 + 0.3 * rng.normal(size=60), shared_N

    assert 0.90 <= coverage(draw, 150) <= 0.99


def test_pairing_takes_out_what_both_find_hard():
    rng = np.random.default_rng(2)
    hard_N = 10 * rng.normal(size=200)
    found = paired(list(hard_N + 0.1 + 0.01 * rng.normal(size=200)), list(hard_N))
    assert found.low > 0
    assert found.high - found.low < 0.01


def test_every_metric_of_a_task_is_compared_and_the_chosen_one_is_first():
    ours = scored("a", {"nats": [3.0, 2.0], "acc": [1.0, 1.0]}, metric="acc")
    theirs = scored("a", {"nats": [4.0, 4.0], "acc": [0.0, 1.0]}, metric="acc")
    first, second = compare(ours, theirs)
    assert (first.metric, first.is_chosen, first.score, first.against) == ("acc", True, 1.0, 0.5)
    assert (second.metric, second.is_chosen) == ("nats", False)
    assert second.difference.mean == -1.5
    assert not second.higher_is_better


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limit": 1}, "a was run with limit None and 1"),
        ({"n_shots": 3}, "a was run with n_shots None and 3"),
        ({"questions": ["a/0/x", "a/1/other"]}, "other questions"),
    ],
)
def test_other_settings_or_questions_are_not_compared(changes, words):
    values = {"acc": [1.0, 0.0]}
    with pytest.raises(ValueError, match=words):
        compare(scored("a", values), scored("a", values, **changes))


def test_the_mean_over_tasks_is_narrower_than_each_and_leaves_nats_out():
    rng = np.random.default_rng(3)
    found = []
    for task in "abcd":
        a_N, b_N = (rng.random((2, 400)) < 0.5).astype(float)
        found += compare(scored(task, {"acc": list(a_N)}), scored(task, {"acc": list(b_N)}))
    mean, low, high = overall(found) or (0.0, 0.0, 0.0)
    assert mean == pytest.approx(np.mean([each.difference.mean for each in found]))
    widths = [each.difference.high - each.difference.low for each in found]
    assert high - low == pytest.approx(np.mean(widths) / 2, rel=0.05)
    nats = compare(scored("n", {"nats": [0.1, 0.2]}), scored("n", {"nats": [0.1, 0.3]}))
    assert overall([*found, *nats]) == overall(found)
    assert overall(nats) is None


def test_over_pairs_the_interval_is_of_the_pairs():
    pairs = []
    for seed, (ours, theirs) in enumerate([(0.50, 0.25), (0.75, 0.25), (0.50, 0.50)]):
        one, two = ([float(i < 4 * x) for i in range(4)] for x in (ours, theirs))
        values = {"acc": one}, {"acc": two}
        pairs.append(compare(*(scored("a", each) for each in values)))
        if seed:
            pairs[-1] += compare(*(scored("b", each) for each in values))
    assert overall_over_pairs(pairs) is None  # a alone is no mean of tasks
    (found,) = over_pairs(pairs)  # only one pair lacks b
    assert (found.task, found.metric, found.higher_is_better) == ("a", "acc", True)
    assert found.score == pytest.approx(1.75 / 3)
    assert found.difference.mean == pytest.approx(0.25)
    assert found.difference.half_width == pytest.approx(4.3027 * 0.25 / 3**0.5, rel=1e-4)
    assert found.difference.n_pairs == 3


def test_the_mean_over_tasks_of_pairs_has_the_interval_of_pairs():
    pairs = []
    for ours, theirs in [(0.50, 0.25), (0.75, 0.25), (0.50, 0.50)]:
        pair = []
        for task, more in (("a", 0.25), ("b", 0.0), ("c", 0.0)):
            one, two = ([float(i < 4 * x) for i in range(4)] for x in (ours + more, theirs))
            pair += compare(scored(task, {"acc": one}), scored(task, {"acc": two}))
        pairs.append(pair)
    del pairs[1][2]  # one pair lacks c, which then counts in none
    mean = overall_over_pairs(pairs)
    assert mean is not None
    assert mean.mean == pytest.approx(0.25 + 0.125)
    assert mean.half_width == pytest.approx(4.3027 * 0.25 / 3**0.5, rel=1e-4)
    assert notes_on_pairs(pairs)[-1] == (
        "Mean difference over tasks scored from 0 to 1: +0.375 ± 0.621."
    )
    even = [[replace(each, difference=each.difference._replace(mean=-1e-9)) for each in pairs[0]]]
    assert notes_on_pairs(even)[-1].endswith(": +0.000.")
