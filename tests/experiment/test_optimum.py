"""The best point of a sweep at one compute, and the figure of its points."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tiny_study import finals, make_row

from attnres.analysis.canvas import LIGHT
from attnres.experiment.folder import OF_THE_REPOSITORY, load_study
from attnres.experiment.optimum import N_DRAWN, columns, notes, optima
from attnres.experiment.points_figure import points_figure
from attnres.experiment.study import Trial
from attnres.experiment.sweep import At

FOLDER = OF_THE_REPOSITORY / "depth_width"  # whose points have one compute
N_LAYERS = (4, 8, 16)
ARMS = {"standard": "standard", "full": "attn_res"}


def sweep_of(losses, seeds=(0, 1, 2)):
    """Points by their layers, from losses by arm, layers and seed."""
    found = []
    for n_layers in N_LAYERS:
        study = load_study(FOLDER, point=f"l{n_layers}h1")
        study = replace(study, arms=ARMS, beside=None, seeds=seeds)
        rates = study.learning_rates
        rows = [
            make_row(study, Trial("tuning", "standard", lr, study.tuning_seed), lr) for lr in rates
        ]
        for arm, by_layers in losses.items():
            rows += finals(study, arm, rates[0], dict(zip(seeds, by_layers[n_layers], strict=True)))
        found.append(At(f"l{n_layers}", study, rows))
    return found


FLAT = {4: (2.0, 2.0, 2.0), 8: (1.0, 1.0, 1.0), 16: (3.0, 3.0, 3.0)}
DEEPER = {4: (2.0, 2.0, 2.0), 8: (1.5, 1.5, 1.5), 16: (0.5, 0.5, 0.5)}
DEEPER_OF_TWO = {layers: losses[:2] for layers, losses in DEEPER.items()}
APART = {4: (1.6, 1.6), 8: (0.5, 1.5), 16: (3.0, 3.0)}


def test_seeds_that_agree_leave_no_doubt():
    standard, full = optima(sweep_of({"standard": FLAT, "full": DEEPER}))
    assert standard.shares == {"l4": 0.0, "l8": 1.0, "l16": 0.0}
    assert full.shares == {"l4": 0.0, "l8": 0.0, "l16": 1.0}
    assert (standard.deeper, standard.as_deep) == (0.0, 1.0)
    assert (full.deeper, full.as_deep) == (1.0, 0.0)


def test_two_points_that_seeds_do_not_tell_apart_share_the_drawings():
    noisy = {4: (1.0, 1.4, 1.2), 8: (1.4, 1.0, 1.2), 16: (3.0, 3.0, 3.0)}
    standard, _ = optima(sweep_of({"standard": noisy, "full": FLAT}))
    assert standard.shares["l4"] + standard.shares["l8"] == pytest.approx(1)
    assert standard.shares["l8"] == pytest.approx(0.5, abs=0.12)  # ties go to the first
    assert standard.shares["l16"] == 0


def test_a_few_seeds_are_given_the_spread_that_they_hide():
    """The mean of two seeds 1 apart is drawn 0.5 off; widened by sqrt(2) it passes 0.6."""
    standard, _ = optima(sweep_of({"standard": APART, "full": DEEPER_OF_TWO}, seeds=(0, 1)))
    assert standard.shares["l4"] == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / N_DRAWN))


def test_the_table_ranks_the_points_of_an_arm():
    found = optima(sweep_of({"standard": APART, "full": DEEPER_OF_TWO}, seeds=(0, 1)))
    arms, places, shares = (column.cells for column in columns(found))
    assert (arms, places) == (["standard", "standard", "full"], ["l8", "l4", "l16"])
    assert (shares[0] > shares[1], shares[2]) == (True, "100%")
    assert "full has more layers than that of standard in 100%" in "\n".join(notes(found))


def test_points_of_unequal_compute_or_without_all_seeds_have_no_optimum():
    found = sweep_of({"standard": FLAT, "full": DEEPER})
    assert len(optima(found[:2])) == 2
    assert optima(found[:1]) == []
    assert optima([found[0], found[1]._replace(rows=found[1].rows[:-1])]) == []
    longer = replace(
        found[1].study, base=replace(found[1].study.base, n_steps=2 * found[1].study.base.n_steps)
    )
    assert optima([found[0], found[1]._replace(study=longer)]) == []


def test_the_figure_shows_every_seed_mean_and_difference():
    figure = points_figure(sweep_of({"standard": FLAT, "full": DEEPER}), LIGHT)
    axes: Any = figure.get_axes()
    losses, differences = axes
    seeds, means = losses.get_lines()[2:]
    assert len(seeds.get_xdata()) == 9
    assert list(means.get_ydata()) == [2.0, 1.5, 0.5]
    assert len(differences.containers) == 3
    assert [text.get_text() for text in losses.get_xticklabels()] == ["l4", "l8", "l16"]
