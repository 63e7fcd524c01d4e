"""The layout for a budget is the finest that fits it."""

import pytest

from attnres import BlockLayout
from attnres.cost import recommend_for_bytes, recommend_for_traffic, source_bytes
from attnres.cost.recommend import traffic_percent
from attnres.residual import TwoPhaseConfig

PROMPT = {"n_sublayers": 128, "dim": 7168, "n_tokens": 128 * 1024}
ONE_SOURCE = 128 * 1024 * 7168 * 2  # bytes; 8 of these are the 15 GB of the paper


def test_blocks_and_the_embedding_fit_into_the_bytes():
    exact = recommend_for_bytes(**PROMPT, budget_bytes=9 * ONE_SOURCE)
    assert exact.layout == BlockLayout.of(128, n_blocks=8)
    assert exact.takes == source_bytes(9, 128 * 1024, 7168)
    short = recommend_for_bytes(**PROMPT, budget_bytes=9 * ONE_SOURCE - 1)
    assert short.layout.n_blocks == 7
    assert short.reason == (
        "n_blocks=7 takes 15 GB of sources and n_blocks=8 16.9 GB of sources, more than the budget "
        "of 16.9 GB of sources; finer blocks were never worse in the paper."
    )


def test_where_all_fit_it_is_full():
    advice = recommend_for_bytes(**PROMPT, budget_bytes=1e12)
    assert advice.layout == BlockLayout.full(128)
    assert advice.reason.startswith("Full takes 242 GB of sources, within the budget of 1e+03 GB")


@pytest.mark.parametrize("percent", [200, 230, 300, 400])
def test_the_finest_layout_that_moves_no_more(percent):
    layout = recommend_for_traffic(48, percent).layout
    assert traffic_percent(layout) <= percent
    finer = range(layout.n_blocks + 1, 49)
    assert all(traffic_percent(BlockLayout.of(48, n_blocks=n)) > percent for n in finer)


@pytest.mark.parametrize("n_blocks", [1, 3, 8, 16])
def test_traffic_is_that_of_the_method(n_blocks):
    residual = TwoPhaseConfig(n_blocks=n_blocks).build(4, 16)
    moved = sum(residual.traffic(depth).total for depth in range(16)) / 16
    assert traffic_percent(residual.layout) == pytest.approx(100 * moved / 3)


def test_a_budget_for_no_block_is_refused():
    with pytest.raises(ValueError, match=r"one block takes 3.76 GB .* budget of 1 GB"):
        recommend_for_bytes(**PROMPT, budget_bytes=1e9)
    with pytest.raises(ValueError, match=r"one block takes \d+ % .* budget of 100 %"):
        recommend_for_traffic(128, 100)
    with pytest.raises(ValueError, match="n_sublayers must be a positive integer, got 0"):
        recommend_for_traffic(0, 100)
