"""Rows on disk, the best rate, and which runs are due."""

import math
from dataclasses import replace

import pytest
from tiny_study import finals, make_row, make_study, tuned

from attnres.experiment.results import best_lr, due, n_left, read_rows, write_rows
from attnres.experiment.study import Trial

STUDY = make_study()
ARMS = tuple(STUDY.arms)
TUNED = {"standard": (3.0, 2.0), "full": (1.5, 2.5), "block": (2.0, 2.0)}


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = tuned(STUDY, {"standard": (1 / 3, math.inf)})
    file = tmp_path / "new" / "results.csv"
    assert read_rows(file, STUDY) == []
    write_rows(file, rows)
    assert read_rows(file, STUDY) == rows
    assert [each.name for each in file.parent.iterdir()] == ["results.csv"]


def test_rows_of_another_study_are_refused(tmp_path):
    file = tmp_path / "results.csv"
    write_rows(file, tuned(STUDY, {"standard": (1.0, 2.0)}))
    other = make_study(version=2)
    words = f"line 2 of .*is {STUDY.fingerprint}, now {other.fingerprint}"
    with pytest.raises(ValueError, match=words):
        read_rows(file, other)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tuning,standard", "tune,standard", "line 2 of .*phase 'tune'"),
        (",1.0,2.0,", ",nan,2.0,", "line 2 of .*a loss is no number"),
        (",0123\n", ",0123,\n", "line 2 of .*a cell too many"),
    ],
)
def test_lines_that_are_no_rows_are_refused(tmp_path, old, new, words):
    file = tmp_path / "results.csv"
    write_rows(file, tuned(STUDY, {"standard": (1.0, 2.0)}))
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=words):
        read_rows(file, STUDY)


def test_a_run_has_one_row(tmp_path):
    first, second = tuned(STUDY, {"standard": (1.0, 2.0)})
    write_rows(tmp_path / "results.csv", [first, second, first])
    with pytest.raises(ValueError, match=r"line 4 of .*is another row of tuning-standard-lr1-seed"):
        read_rows(tmp_path / "results.csv", STUDY)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    file = tmp_path / "results.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"results.csv is no text"):
        read_rows(file, STUDY)


def test_rows_of_other_tokens_are_refused(tmp_path):
    first, second = tuned(STUDY, {"standard": (1.0, 2.0)})
    write_rows(tmp_path / "results.csv", [first, replace(second, tokens="xyz")])
    with pytest.raises(ValueError, match=r"line 3 .*other tokens .*xyz, not abc"):
        read_rows(tmp_path / "results.csv", STUDY)


def test_rows_of_an_arm_that_has_changed_are_refused(tmp_path):
    rows = tuned(STUDY, {"full": (1.0, 2.0)})
    write_rows(tmp_path / "results.csv", rows)
    changed = make_study(arms=dict(STUDY.arms) | {"full": "attn_res:n_blocks=3"})
    with pytest.raises(ValueError, match=r"arm 'full' was run as 'attn_res', .*n_blocks=3"):
        read_rows(tmp_path / "results.csv", changed)


def test_an_arm_is_the_same_in_other_words(tmp_path):
    file, study = tmp_path / "results.csv", make_study(arms=dict(STUDY.arms) | {"full": "attn_res"})
    trial = Trial("tuning", "full", 1.0, 100)
    write_rows(file, [make_row(study, trial, 1.0, residual="attn_res:eps=1e-06")])
    assert len(read_rows(file, study)) == 1


def test_rows_of_arms_that_are_not_here_stay(tmp_path):
    rows = tuned(STUDY, {"full": (1.0, 2.0)})
    write_rows(tmp_path / "results.csv", rows)
    assert read_rows(tmp_path / "results.csv", make_study(arms={"standard": "standard"})) == rows
    unheard = make_study(arms=dict(STUDY.arms) | {"full": "unheard_of"})
    assert read_rows(tmp_path / "results.csv", unheard) == rows


@pytest.mark.parametrize("text", ["phase,arm\ntuning,full\n", "a,b\n1,2\n"])
def test_a_file_that_holds_no_rows_is_refused_with_the_line(tmp_path, text):
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(ValueError, match=r"line 2 of .*no row"):
        read_rows(tmp_path / "results.csv", STUDY)


def test_the_best_rate_has_the_lowest_tuning_loss():
    rows = tuned(STUDY, TUNED)
    assert [best_lr(STUDY, rows, arm) for arm in ARMS] == [2.0, 1.0, 1.0]
    assert best_lr(STUDY, rows[:1], "standard") is None, "one rate is not tried"
    diverged = tuned(STUDY, {"full": (math.inf, math.inf), "block": (math.inf, 3.0)})
    assert best_lr(STUDY, diverged, "full") is None
    assert best_lr(STUDY, diverged, "block") == 2.0


def test_a_rate_that_the_study_has_no_more_cannot_win():
    rows = tuned(make_study(learning_rates=(1.0, 2.0, 4.0)[:2]), {"full": (3.0, 2.0)})
    rows.append(make_row(STUDY, Trial("tuning", "full", 4.0, 100), 1.0))
    assert best_lr(STUDY, rows, "full") == 2.0


def test_all_arms_tune_first_and_seeds_follow_one_by_one():
    found = due(STUDY, [], ARMS)
    assert [(t.arm, t.lr, t.seed) for t in found] == [
        (arm, lr, 100) for arm in ARMS for lr in (1.0, 2.0)
    ]
    rows = tuned(STUDY, TUNED)
    found = due(STUDY, rows, ARMS)
    best = {"standard": 2.0, "full": 1.0, "block": 1.0}
    assert [(t.seed, t.arm, t.lr) for t in found] == [
        (seed, arm, best[arm]) for seed in (0, 1, 2) for arm in ARMS
    ]
    rows += finals(STUDY, "full", 1.0, {0: 1.0, 1: 1.0, 2: 1.0})
    assert {trial.arm for trial in due(STUDY, rows, ARMS)} == {"standard", "block"}
    assert due(STUDY, rows, ["full"]) == []


def test_an_arm_that_is_tuned_need_not_wait():
    rows = tuned(STUDY, {"full": (1.0, 2.0)})
    found = due(STUDY, rows, ARMS)
    assert [t.phase for t in found] == ["tuning"] * 4 + ["final"] * 3
    assert {t.arm for t in found[4:]} == {"full"}


def test_what_is_left_counts_the_seeds_of_arms_not_yet_tuned():
    assert n_left(STUDY, [], ARMS) == 3 * (2 + 3)
    rows = tuned(STUDY, {"full": (math.inf, math.inf), "block": (1.0, 2.0)})
    assert n_left(STUDY, rows, ARMS) == (2 + 3) + 0 + 3
    assert n_left(STUDY, rows[2:3], ["block"]) == 1 + 3
