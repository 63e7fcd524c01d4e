"""Laws against figures done by hand, the paper's table, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from call_command import call_command

from attnres.analysis import paper
from attnres.analysis.bootstrap import Plan, estimate
from attnres.analysis.fit import HUBER, Law, fit, has_no_floor, multiplier
from attnres.analysis.fit_page import apart, notes
from attnres.analysis.points import Drawing, Points, read_points

BUDGET_P = np.array([1e13, 3e13, 1e14, 4e14, 2e15])


def losses(law):
    return np.array([law.loss(budget) for budget in BUDGET_P])


@pytest.mark.parametrize("method", ["squares", "huber"])
@pytest.mark.parametrize("law", [Law(scale=1.9, exponent=0.06), Law(scale=40, exponent=0.09)])
def test_a_power_law_is_found_again(law, method):
    found = fit(BUDGET_P, losses(law), "power", method)
    assert found.scale == pytest.approx(law.scale, rel=1e-9)
    assert found.exponent == pytest.approx(law.exponent, rel=1e-9)
    assert found.floor == 0


@pytest.mark.parametrize("method", ["squares", "huber"])
@pytest.mark.parametrize("floor", [0.4, 1.7, 2.8])
def test_a_law_with_a_floor_is_found_again(floor, method):
    law = Law(scale=900, exponent=0.2, floor=floor)
    found = fit(BUDGET_P, losses(law), "floor", method)
    assert found.floor == pytest.approx(floor, abs=1e-5)
    assert found.exponent == pytest.approx(0.2, rel=1e-4)
    assert not has_no_floor(found)


def test_least_squares_is_that_of_the_slope_by_hand():
    """log C 0, 1, 2, 3 and log L 1, 0.5, 0.6, 0.1: slope -0.26, mean 0.55 at 1.5."""
    found = fit(np.exp([0.0, 1, 2, 3]), np.exp([1.0, 0.5, 0.6, 0.1]))
    assert found.exponent == pytest.approx(0.26)
    assert math.log(found.scale) == pytest.approx(0.55 + 1.5 * 0.26)


def test_one_bad_run_moves_hubers_law_less():
    law = Law(scale=40, exponent=0.09)
    spoilt = losses(law)
    spoilt[-1] *= 1.1
    squares, huber = (fit(BUDGET_P, spoilt, "power", method) for method in ("squares", "huber"))
    assert abs(huber.exponent - 0.09) < 0.1 * abs(squares.exponent - 0.09)


@pytest.mark.parametrize(("method", "size"), [("squares", 1), ("huber", 0.1)])
def test_no_law_beside_the_one_found_misses_noisy_points_by_less(method, size):
    law = Law(scale=900, exponent=0.2, floor=1.7)
    noisy_P = losses(law) * np.exp(size * np.array([0.02, -0.03, 0.01, 0.02, -0.01]))
    found = fit(BUDGET_P, noisy_P, "floor", method)
    least = missed(found, noisy_P, method)
    for name in ("scale", "exponent", "floor"):
        value = getattr(found, name)
        below, above = (
            missed(replace(found, **{name: share * value}), noisy_P, method)
            for share in (0.9999, 1.0001)
        )
        bend = above + below - 2 * least
        assert abs(above - below) < 0.01 * bend, name


def missed(law, losses_P, method):
    """The sum that a fit makes least, by its definition."""
    sizes = [
        abs(math.log(loss) - math.log(own)) for loss, own in zip(losses_P, losses(law), strict=True)
    ]
    if method == "squares":
        return sum(size**2 for size in sizes)
    return sum(size**2 / 2 if size < HUBER else HUBER * (size - HUBER / 2) for size in sizes)


def test_points_without_a_floor_give_none():
    found = fit(
        BUDGET_P, losses(Law(scale=40, exponent=0.09)) * [1, 1.001, 1.002, 1.001, 1], "floor"
    )
    assert has_no_floor(found)


def test_a_law_and_its_inverse():
    law = Law(scale=3, exponent=0.5, floor=1)
    assert law.loss(4) == 2.5
    assert law.budget(2.5) == pytest.approx(4)
    assert law.budget(1) == math.inf
    assert multiplier(Law(scale=1, exponent=0.5), Law(scale=2, exponent=0.5), 7) == pytest.approx(4)


@pytest.mark.parametrize(
    ("budgets", "values", "form", "words"),
    [
        ([1, 2], [2, 1.9], "power", "under-determined: a power law has 2 .* at least 3 .*, got 2"),
        ([1, 2, 2, 1], [2, 1.9, 1.9, 2], "power", "got 2"),
        ([1, 2, 4], [2, 1.9, 1.85], "floor", "a floor law has 3 parameters"),
        ([1, 2, -4], [2, 1.9, 1.85], "power", "budgets must be positive"),
        ([1, 2, 4], [2, 1.9, math.inf], "power", "losses must be positive and finite"),
        ([1, 2, 4], [2, 1.9], "power", "budgets for"),
        ([1, 2, 4], [2, 2.1, 2.3], "power", "does not fall with compute"),
        ([1, 2, 4, 8, 16], [2, 1.5, 1.5, 1.5, 1.5], "floor", "do not determine a floor"),
        ([1, 2, 4], [2, 1.9, 1.8], "other", "no law 'other'"),
    ],
)
def test_what_cannot_be_fitted_is_refused(budgets, values, form, words):
    with pytest.raises(ValueError, match=words):
        fit(np.array(budgets, float), np.array(values, float), form)


def test_a_law_too_steep_or_too_flat_for_a_number_is_none_or_never_there():
    with pytest.raises(ValueError, match="the loss falls too steeply: alpha is 1"):
        fit(1e12 * np.array([1.0, 1.001, 1.002, 1.003]), np.array([3.0, 2.7, 2.4, 2.1]))
    assert Law(scale=3.0, exponent=1e-6).budget(2.0) == math.inf


def test_the_table_of_the_paper_gives_its_laws():
    """A within 0.002 and alpha within 0.0005 of the text; see `attnres fit --paper`."""
    table = paper.points()
    for arm, printed in paper.PRINTED.items():
        found = fit(*table.of(arm))
        assert found.scale == pytest.approx(printed.scale, abs=2e-3)
        assert found.exponent == pytest.approx(printed.exponent, abs=5e-4)
    found = fit(*table.of("Block")), fit(*table.of("standard"))
    assert multiplier(*found, 5.6) == pytest.approx(1.274, abs=1e-3)


def test_the_claim_of_the_paper_is_within_noise_but_not_within_rounding():
    arm, budget, claimed = paper.CLAIMED
    for drawing, is_within in ((Drawing(rounding=1e-3), False), (paper.DRAWING, True)):
        plan = Plan(drawing=drawing, n_refits=300)
        found = {each.arm: each for each in estimate(paper.points(), "standard", [budget], plan)}
        _, low, high = found[arm].multipliers[budget]
        assert (low < claimed < high) == is_within
        assert low > 1


def noisy(n_seeds, spread, rng):
    """Two arms whose noise is that of the point and seed, the same for both."""
    noise = np.exp(spread * rng.standard_normal((5, n_seeds)))
    laws = {"standard": Law(scale=40, exponent=0.09), "full": Law(scale=39, exponent=0.09)}
    return Points(
        budgets=dict.fromkeys(laws, BUDGET_P),
        losses={arm: losses(law)[:, None] * noise for arm, law in laws.items()},
    )


@pytest.mark.parametrize(
    "drawing",
    [Drawing(seeds=True), Drawing(points=True, seeds=True), Drawing(residuals=True)],
    ids=str,
)
def test_what_moves_all_arms_alike_moves_no_multiplier(drawing):
    points = noisy(3, 0.01, np.random.default_rng(0))
    plan = Plan(drawing=drawing, n_refits=50)
    standard, full = estimate(points, "standard", [1e14], plan)
    assert not standard.multipliers
    assert standard.exponent.high - standard.exponent.low > 1e-3
    value, low, high = full.multipliers[1e14]
    assert value == pytest.approx((40 / 39) ** (1 / full.exponent.value))
    assert high - low < 0.04  # of the exponent's interval; levels alone are apart by 0.1


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(1)
    plan = Plan(drawing=Drawing(residuals=True), n_refits=60)
    n_held = 0
    for _ in range(40):
        standard, _ = estimate(noisy(1, 0.005, rng), "standard", [], plan)
        n_held += standard.exponent.low < 0.09 < standard.exponent.high
    assert 29 <= n_held <= 40  # residuals of five points give about 0.85


def test_failed_refits_are_counted_and_said():
    points = noisy(1, 0.001, np.random.default_rng(0))
    four = Points(
        budgets={arm: budget_P[:4] for arm, budget_P in points.budgets.items()},
        losses={arm: losses_PS[:4] for arm, losses_PS in points.losses.items()},
    )
    plan = Plan(drawing=Drawing(points=True), n_refits=200)
    standard, _ = estimate(four, "standard", [], plan)
    assert standard.n_refits + standard.n_failed == 200
    # of 256 drawings of four, 4 have one budget and 84 two
    assert standard.n_failed / 200 == pytest.approx(88 / 256, abs=0.1)
    assert not standard.is_trusted


def test_the_same_seed_gives_the_same_intervals():
    plan = Plan(drawing=paper.DRAWING, n_refits=40)
    assert estimate(paper.points(), "standard", [1.0], plan) == estimate(
        paper.points(), "standard", [1.0], plan
    )


ROWS = "arm,budget,loss,seed\n" + "".join(
    f"{arm},{budget},{scale * budget**-0.1 * (1 + 0.001 * seed)},{seed}\n"
    for arm, scale in (("standard", 4.0), ("full", 3.8))
    for budget in (1.0, 2.0, 4.0, 8.0)
    for seed in (0, 1)
)


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "rows.csv").write_text(ROWS)
    return lambda *arguments: call_command("fit", arguments, capsys)


def test_the_command_says_what_was_found(call, tmp_path):
    status, out, err = call("rows.csv", "--refits", 40, "--at", 2, "--residuals", "--out", "page")
    assert (status, err) == (0, "")
    assert f"{(4 / 3.8) ** 10:.3f} (" in out
    assert "residuals" in out
    assert "seeds" in out
    page = (tmp_path / "page" / "fit.md").read_text()
    assert "| full | 3.8" in page
    assert {path.name for path in (tmp_path / "page").iterdir()} == {
        "fit.md",
        "fit.png",
        "fit-dark.png",
    }


def test_the_command_has_the_table_of_the_paper(call):
    status, out, err = call("--paper", "--refits", 40)
    assert (status, err) == (0, "")
    assert "Block: 1.870 C^-0.058; 1.8699 C^-0.0578; here 1.8716 C^-0.0582" in out
    assert "the laws of the text give 1.254, those of the figure 1.267" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either a file of rows or --paper"),
        (["rows.csv", "--paper"], "give either"),
        (["none.csv"], "none.csv"),
        (["rows.csv", "--reference", "other"], "no arm 'other'; there are: standard, full"),
        (["rows.csv", "--refits", "1"], "40 refits at the least, got 1"),
        (["rows.csv", "--at", "-1"], "must be positive"),
        (["rows.csv", "--at", "inf"], "positive and finite, got [inf]"),
        (["rows.csv", "--rounding", "-1"], "rounding must be a finite number from 0 on, got -1"),
        (["rows.csv", "--rounding", "nan"], "from 0 on, got nan"),
    ],
)
def test_bad_input_ends_with_one_line(call, arguments, words):
    status, _, err = call(*arguments)
    assert status == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arm,loss\nfull,1\n", "has no column budget"),
        ("arm,budget,loss\nfull,1,high\n", "line 2 of .* is no point"),
        ("arm,budget,loss\nfull,1,nan\n", "line 2 of .* budget 1 and loss nan must be positive"),
        ("arm,budget,loss\nfull,1,2\nfull,2,-2\n", "line 3 of .* loss -2 must be positive"),
        ("arm,budget,loss\nfull,-1,2\n", "line 2 of .* budget -1 and loss 2 must be positive"),
        ("arm,budget,loss\nfull,1,2\nfull,1,3\n", "line 3 of .* repeats a seed"),
        ("arm,budget,loss\n", "holds no points"),
        ("arm,budget,loss\na,1,2\na,2,2\nb,1,2\n", "differ in their number of budgets"),
    ],
)
def test_rows_that_are_none_are_refused(tmp_path, text, words):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_points(tmp_path / "rows.csv")


def test_a_run_that_diverged_is_no_run(tmp_path):
    text = "arm,budget,loss,seed\na,1,2,0\na,1,inf,1\na,2,1.5,0\na,2,1.7,1\n"
    (tmp_path / "rows.csv").write_text(text)
    points = read_points(tmp_path / "rows.csv")
    budget_P, loss_P = points.of("a")
    assert budget_P.tolist() == [1, 2]
    assert loss_P == pytest.approx([2, 1.6])
    assert points.n_lost == {"a": 1}


def test_what_a_law_has_no_run_of_is_said(call, tmp_path):
    assert "in no law" not in call("rows.csv", "--refits", 40, "--residuals")[1]
    lost = ROWS.replace(f"full,8.0,{3.8 * 8**-0.1 * 1.001},1", "full,8.0,inf,1")
    (tmp_path / "rows.csv").write_text(lost)
    _, out, _ = call("rows.csv", "--refits", 40, "--residuals")
    assert "Runs that are lacking or diverged, and are in no law: full 1 of 8." in out


def test_how_far_points_miss_their_law_is_said():
    law = Law(scale=4.0, exponent=0.1)
    budget_P = np.array([1.0, 10.0, 100.0, 1000.0])
    losses_PS = np.array([[law.loss(budget)] for budget in budget_P])
    bent_PS = losses_PS * np.array([[0.98], [1.02], [1.02], [0.98]])  # the same law fits best
    points = Points(
        budgets={"straight": budget_P, "bent": budget_P},
        losses={"straight": losses_PS, "bent": bent_PS},
    )
    plan = Plan(drawing=Drawing(residuals=True), n_refits=40)
    said = " ".join(notes(points, estimate(points, "straight", [1.0], plan), "straight", plan))
    assert "misses its law by at most: straight 0.0%, bent 2.0%." in said


def test_the_mark_that_a_spreadsheet_begins_with_is_no_letter(tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8-sig")
    assert read_points(tmp_path / "rows.csv").losses.keys() == {"standard", "full"}


def test_budgets_near_each_other_share_a_label():
    assert apart([1.0, 2.0, 20.0, 100.0]) == ["", "2", "20", "100"]
    assert apart([1.0, 10.0, 100.0]) == ["1", "10", "100"]
    assert apart([3.0]) == ["3"]
