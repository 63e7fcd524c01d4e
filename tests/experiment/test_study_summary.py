"""What the rows say: means, paired differences, notes, and the page."""

import csv
import io
import math

import pytest
from rich.console import Console
from tiny_study import finals, make_study, tuned

from attnres.analysis import canvas
from attnres.analysis.table import MISSING
from attnres.experiment import figure, page
from attnres.experiment.summary import notes, summarise

STUDY = make_study(learning_rates=(1.0, 2.0, 4.0), paper={"standard": 1.766, "full": 1.737})
TUNED = tuned(
    STUDY,
    {"standard": (3.0, 2.0, 3.0), "full": (3.0, 1.0, 3.0), "block": (1.0, 2.0, 3.0)},
)
ROWS = (
    TUNED
    + finals(STUDY, "standard", 2.0, {0: 4.0, 1: 5.0, 2: 6.0})
    + finals(STUDY, "full", 2.0, {0: 3.9, 1: 4.8, 2: 5.7})
    + finals(STUDY, "block", 1.0, {0: 5.0, 1: 6.0, 2: 7.1})
)


def by_arm(rows, study=STUDY):
    return {each.arm: each for each in summarise(study, rows)}


def test_mean_deviation_and_difference_are_over_the_seeds_at_the_best_rate():
    stale = finals(STUDY, "full", 4.0, {0: 99.0})
    arms = by_arm(ROWS + stale)
    full = arms["full"]
    assert (full.lr, full.n_seeds, full.n_diverged, full.is_at_edge) == (2.0, 3, 0, False)
    assert full.mean == pytest.approx(4.8)
    assert full.sd == pytest.approx(0.9)
    assert full.difference is not None
    assert full.difference.mean == pytest.approx(-0.2)
    assert full.difference.half_width == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-5)
    assert full.paper_difference == pytest.approx(-0.029)
    assert arms["standard"].difference is arms["standard"].paper_difference is None
    assert arms["block"].is_at_edge
    assert arms["block"].paper is None


def test_pairs_are_matched_by_seed_not_by_place():
    shuffled = [row for row in ROWS if row.phase == "tuning" or row.arm != "standard"]
    shuffled += finals(STUDY, "standard", 2.0, {2: 6.0, 0: 4.0, 1: 5.0})
    assert by_arm(shuffled)["full"].difference == by_arm(ROWS)["full"].difference
    without = [row for row in ROWS if (row.arm, row.seed) != ("standard", 1)]
    difference = by_arm(without)["full"].difference
    assert difference is not None
    assert difference.n_pairs == 2
    assert difference.mean == pytest.approx(-0.2)


def test_a_seed_that_diverged_is_in_no_mean_and_said():
    rows = TUNED + finals(STUDY, "standard", 2.0, {0: 4.0, 1: 5.0, 2: 6.0})
    rows += finals(STUDY, "full", 2.0, {0: 3.9, 1: math.inf, 2: 5.7})
    full = by_arm(rows)["full"]
    assert (full.n_seeds, full.n_diverged, full.mean) == (3, 1, pytest.approx(4.8))
    assert full.difference is not None
    assert full.difference.n_pairs == 2
    assert "full 1 of 3" in " ".join(notes(STUDY, summarise(STUDY, rows)))


def test_an_arm_that_diverged_at_every_rate_is_named():
    rows = tuned(STUDY, {"full": (math.inf, math.inf, math.inf)})
    (full,) = summarise(STUDY, rows)
    assert full.is_failed
    said = " ".join(notes(STUDY, [full]))
    assert "Diverged at every rate tried: full." in said
    assert "Not finished: standard, block." in said


def test_arms_stand_by_loss_or_in_the_order_of_the_study():
    assert list(by_arm(ROWS)) == ["full", "standard", "block"]
    study = make_study(learning_rates=(1.0, 2.0, 4.0), in_order=True)
    assert list(by_arm(ROWS, study)) == ["standard", "full", "block"]


def test_notes_say_what_can_be_resolved_and_what_is_too_little():
    said = " ".join(notes(STUDY, summarise(STUDY, ROWS)))
    assert "±0.1959" in said  # between 0.2484 and 4.30265 * 0.1 / 3
    assert "edge" in said
    assert said.count("block") == 1
    two = [row for row in ROWS if row.seed != 2]
    said = " ".join(notes(STUDY, summarise(STUDY, two)))
    assert "fewer than 3 seeds" in said
    assert "Not finished" in said


def test_the_page_has_a_line_an_arm_and_the_paper_beside_it():
    text = page.to_markdown(STUDY, summarise(STUDY, ROWS))
    (line,) = (line for line in text.splitlines() if line.startswith("| full "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    minus = "\N{MINUS SIGN}"
    assert cells[1:4] == ["4.8000", "0.9000", f"{minus}0.2000 ± 0.2484"]
    assert cells[-2:] == ["1.737", f"{minus}0.029"]
    without = page.to_markdown(make_study(learning_rates=(1.0, 2.0, 4.0)), summarise(STUDY, TUNED))
    assert MISSING in without


def test_differences_from_an_arm_that_the_study_names_stand_beside():
    study = make_study(learning_rates=(1.0, 2.0, 4.0), beside="full")
    arms = by_arm(ROWS, study)
    assert arms["full"].beside is None
    from_full, from_standard = arms["standard"].beside, arms["full"].difference
    assert from_full is not None
    assert from_standard is not None
    assert from_full.mean == pytest.approx(0.2)
    assert from_full.half_width == from_standard.half_width
    lines = page.to_markdown(study, [*arms.values()]).splitlines()
    assert "| Minus standard | Minus full | Seeds |" in lines[2]
    assert "Of 4 intervals" in lines[-2]
    assert any(f"| {MISSING} | +0.2000 ± 0.2484 | 3 |" in line for line in lines)
    (block,) = (r for r in csv.DictReader(io.StringIO(page.to_csv(study, [arms["block"]]))))
    assert float(block["beside"]) == pytest.approx(18.1 / 3 - 4.8)
    assert block["beside_arm"] == "full"
    assert "Minus full" not in page.to_markdown(STUDY, summarise(STUDY, ROWS))


def test_the_csv_has_a_line_an_arm_with_numbers_in_full():
    text = page.to_csv(STUDY, summarise(STUDY, ROWS))
    lines = {line["arm"]: line for line in csv.DictReader(io.StringIO(text))}
    assert list(lines) == ["full", "standard", "block"]
    assert float(lines["full"]["mean"]) == by_arm(ROWS)["full"].mean
    assert float(lines["full"]["difference"]) == pytest.approx(-0.2)
    assert lines["standard"]["difference"] == lines["standard"]["half_width_95"] == ""
    assert lines["full"]["beside_arm"] == ""


def test_a_terminal_of_80_letters_cuts_nothing():
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(page.rich_table(STUDY, summarise(STUDY, ROWS)))
    assert "…" not in capture.get()
    assert "± 0.2484" in capture.get()


def test_the_figure_has_a_point_an_arm_and_the_papers():
    drawn = figure.differences(summarise(STUDY, ROWS), canvas.LIGHT)
    (axes,) = drawn.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full", "block"]
    (papers,) = (line for line in axes.lines if line.get_label() == "the paper")
    assert papers.get_xdata() == pytest.approx([-0.029])
    assert canvas.png(drawn).startswith(b"\x89PNG")
