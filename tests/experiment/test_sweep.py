"""Sweeps: rates of the baseline for all arms, one file a point, and a law over the points."""

import os
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from call_command import call_command
from tiny_study import finals, make_row, make_study

import attnres
from attnres.analysis.table import MISSING
from attnres.experiment import sweep
from attnres.experiment.folder import load_study, points
from attnres.experiment.results import best_lr, due, n_left, write_rows
from attnres.experiment.study import Trial
from attnres.experiment.sweep import At, Sweep, compute_of, points_of, quicker
from attnres.residual import RESIDUALS, StandardConfig

ROOT = Path(attnres.__file__).parent.parent
RUNS = '''"""A sweep for tests."""

from dataclasses import replace
from pathlib import Path

from tiny_runs import recipe

from attnres.experiment.study import Study
from attnres.experiment.sweep import Sweep


def study() -> Sweep:
    base = recipe(Path({text!r}), "standard")
    studies = {{
        f"s{{n_steps}}": Study(
            name=f"sweep-s{{n_steps}}",
            base=replace(base, n_steps=n_steps),
            arms={{"standard": "standard", "full": "attn_res"}},
            learning_rates=(1e-3, 1e-2),
            seeds=(0, 1),
            n_scored=4,
            rates_of_reference=True,
        )
        for n_steps in (2, 4, 8, 16)
    }}
    return Sweep(name="sweep", studies=studies)
'''


@pytest.fixture
def folder(text, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    handler = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "sweep"
    path.mkdir()
    (path / "runs.py").write_text(RUNS.format(text=str(text)))
    yield path
    signal.signal(signal.SIGTERM, handler)


def test_only_the_baseline_tries_rates_and_all_arms_run_at_its_best():
    study = make_study(rates_of_reference=True)
    arms = list(study.arms)
    assert {trial.arm for trial in due(study, [], arms)} == {"standard"}
    assert n_left(study, [], arms) == 2 + 3 * 3
    rows = [
        make_row(study, Trial("tuning", "standard", lr, study.tuning_seed), loss)
        for lr, loss in ((1.0, 3.0), (2.0, 2.5))
    ]
    assert [best_lr(study, rows, arm) for arm in arms] == [2.0, 2.0, 2.0]
    assert len(due(study, rows, arms)) == n_left(study, rows, arms) == 9
    assert {trial.lr for trial in due(study, rows, arms)} == {2.0}
    assert study.choose(["full"]) == ("standard", "full")
    assert study.fingerprint != make_study().fingerprint


def test_points_must_have_the_same_arms_and_names():
    study = make_study()
    with pytest.raises(ValueError, match="differ in arms, beside or text"):
        Sweep(name="x", studies={"a": study, "b": replace(study, arms={"standard": "standard"})})
    with pytest.raises(ValueError, match="named as a file is, got 'a/b'"):
        Sweep(name="x", studies={"a/b": study})


def test_a_point_is_loaded_by_name_and_quick_has_one_rate_and_seed(folder):
    assert points(folder) == ["s2", "s4", "s8", "s16"]
    study = load_study(folder, point="s8")
    assert study.base.n_steps == 8
    quick = load_study(folder, is_quick=True, point="s8")
    assert quick == quicker(study)
    assert (quick.learning_rates, quick.seeds) == ((1e-3,), (0,))


def write_points(folder):
    """Losses of 4 C^-0.1 for standard and 3.8 C^-0.1 for full, C with attention."""
    found = []
    for point in points(folder):
        study = load_study(folder, point=point)
        budget = compute_of(study, "standard").total("attention")
        rows = [
            make_row(study, Trial("tuning", "standard", lr, study.tuning_seed), lr)
            for lr in study.learning_rates
        ]
        for arm, scale in (("standard", 4.0), ("full", 3.8)):
            losses = {seed: scale * budget**-0.1 * (1 + 0.01 * seed) for seed in (0, 1)}
            rows += finals(study, arm, 1e-3, losses)
        write_rows(folder / f"results-{point}.csv", rows)
        found.append(At(point, study, rows))
    return found


def test_a_summary_has_all_points_and_the_law(folder, capsys):
    found = write_points(folder)
    table = points_of(found)
    assert table.losses["full"].shape == (4, 2)
    status, out, err = call_command("experiment", [folder, "--summary"], capsys)
    assert (status, err) == (0, "")
    assert "s16 full 4" in out
    page = (folder / "summary.md").read_text()
    assert f"{(4 / 3.8) ** 10:.3f} (" in page
    assert "C counts products with weights, and attention's scores and sums." in page
    rows = (folder / "points.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 * 2 * 2
    assert (folder / "fit.png").is_file()


def test_in_a_terminal_of_80_letters_no_word_is_broken(folder, monkeypatch, capsys):
    found = write_points(folder)
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = call_command("experiment", [folder, "--summary"], capsys)
    words = out.split()
    for column in sweep.for_a_terminal(sweep.columns(found)):
        assert all(word in words for cell in column.cells for word in cell.split())


def test_differences_from_an_arm_that_the_points_name_stand_on_the_page(folder, capsys):
    runs = (folder / "runs.py").read_text()
    (folder / "runs.py").write_text(runs.replace("seeds=(0, 1),", 'seeds=(0, 1), beside="full",'))
    rows = write_points(folder)[0].rows
    standard, full = (
        fmean(row.report_loss for row in rows if (row.phase, row.arm) == ("final", arm))
        for arm in ("standard", "full")
    )
    _, out, _ = call_command("experiment", [folder, "--summary"], capsys)
    page = (folder / "summary.md").read_text()
    assert "| Minus standard | Minus full |" in page
    assert f"| {MISSING} | {standard - full:+.4f} ± " in page
    assert "Minus full" not in out


def test_the_page_says_what_is_lacking_diverged_or_at_the_edge_of_the_rates(folder, capsys):
    found = write_points(folder)
    rows = {at.point: list(at.rows) for at in found}
    rows["s2"][-1] = replace(rows["s2"][-1], report_loss=float("inf"))
    del rows["s4"][-1]
    for point, changed in rows.items():
        write_rows(folder / f"results-{point}.csv", changed)
    _, out, _ = call_command("experiment", [folder, "--summary"], capsys)
    page = (folder / "summary.md").read_text()
    for words in (
        "with Student's interval of 95 %.",
        "s2: Seeds that diverged and are in no mean: full 1 of 2.",
        "s4: Not finished: full.",
        "Best at the edge of the rates tried, so perhaps better beyond: full, standard.",
        "With fewer than 3 seeds a difference says next to nothing: run more.",
        "Runs that are lacking or diverged, and are in no law: full 2 of 8.",
    ):
        assert words in page
        assert words in out


def test_one_remark_of_several_points_is_one_line(folder, capsys):
    write_points(folder)
    call_command("experiment", [folder, "--summary"], capsys)
    page = (folder / "summary.md").read_text()
    assert page.count("Best at the edge") == page.count("s2, s4, s8, s16: Best at the edge") == 1


def test_points_of_one_compute_have_an_optimum_and_no_law(folder, capsys):
    runs = (folder / "runs.py").read_text()
    (folder / "runs.py").write_text(runs.replace("n_steps=n_steps", "n_steps=10_000 + n_steps"))
    found = write_points(folder)
    for at in found:
        better = 0.1 if at.point == "s8" else 0.0
        rows = [replace(row, report_loss=row.report_loss - better) for row in at.rows]
        write_rows(folder / f"results-{at.point}.csv", rows)
    call_command("experiment", [folder, "--summary"], capsys)
    page = (folder / "summary.md").read_text()
    assert "| standard | s8 | 100% |" in page
    assert "No law of loss over compute: the points differ in shape, hardly in compute." in page
    assert not (folder / "fit.md").exists()


def test_points_without_a_law_still_have_their_table(folder, capsys):
    write_points(folder)
    (folder / "results-s16.csv").unlink()
    (folder / "results-s8.csv").unlink()
    status, _, _ = call_command("experiment", [folder, "--summary"], capsys)
    assert status == 0
    assert (
        "No law of loss over compute: arm 'standard': under-determined"
        in (folder / "summary.md").read_text()
    )


@pytest.mark.slow
def test_a_quick_sweep_runs_and_goes_on(folder, tmp_path, capsys):
    arguments = [folder, "--quick", "--folder", tmp_path / "runs"]
    status, _, err = call_command("experiment", arguments, capsys)
    assert (status, err) == (0, "")
    files = sorted((tmp_path / "runs" / "sweep-quick").glob("results-*.csv"))
    assert len(files) == 4
    before = [file.read_bytes() for file in files]
    assert call_command("experiment", arguments, capsys)[0] == 0
    assert [file.read_bytes() for file in files] == before


BAD = """

class BadConfig(StandardConfig):
    def build(self, dim, n_sublayers):
        raise ValueError("it cannot be built")


RESIDUALS["bad"] = BadConfig
"""


@pytest.mark.slow
def test_an_arm_that_fails_at_a_point_keeps_no_other_point_from_being_run(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(RESIDUALS, "bad", StandardConfig)  # and it is gone in the end
    runs = (folder / "runs.py").read_text().replace("(2, 4, 8, 16)", "(2, 4)")
    runs = runs.replace('"full": "attn_res"', '"bad": "bad"').replace("\n\n\ndef", f"{BAD}\n\ndef")
    imported = (
        "from attnres.residual import RESIDUALS, StandardConfig\nfrom attnres.experiment.study"
    )
    (folder / "runs.py").write_text(runs.replace("from attnres.experiment.study", imported))
    arguments = [folder, "--quick", "--processes", 1, "--folder", tmp_path / "runs"]
    status, _, err = call_command("experiment", arguments, capsys)
    assert status == 2
    reason = "arm 'bad': ValueError: it cannot be built"
    assert err == f"attnres: error: s2 {reason}; s4 {reason}\n"
    out = tmp_path / "runs" / "sweep-quick"
    assert len([*out.glob("results-*.csv")]) == 2
    page = (out / "summary.md").read_text()
    assert "| s2 | standard |" in page
    assert "| s4 | standard |" in page
