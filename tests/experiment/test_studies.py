"""The studies of this repository."""

import runpy
import shutil
import sys

import pytest

from attnres.analysis.canvas import LIGHT
from attnres.experiment.folder import OF_THE_REPOSITORY, load_study, points
from attnres.experiment.sweep import compute_of
from attnres.residual import RESIDUALS

OF_ONE_BASE = ("methods", "components", "block_size")
STUDIES = (*OF_ONE_BASE, "kimi_linear", "reasoning")


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("is_quick", [False, True])
def test_every_arm_is_possible(name, is_quick):
    study = load_study(OF_THE_REPOSITORY / name, is_quick)
    assert study.name.removesuffix("-quick") == name
    assert study.choose(()) == tuple(study.arms)


@pytest.mark.parametrize("name", STUDIES)
def test_no_two_arms_are_one_residual(name):
    study = load_study(OF_THE_REPOSITORY / name)
    configs = [study.residual(arm) for arm in study.arms]
    assert len(set(configs)) == len(configs)


def test_every_registered_method_is_an_arm_also_one_of_ones_own(monkeypatch):
    monkeypatch.setitem(RESIDUALS, "mine", RESIDUALS["attn_res"])
    arms = load_study(OF_THE_REPOSITORY / "methods").arms
    assert {"standard", "attn_res", "attn_res-block", "mine"} <= set(arms)
    methods = {str(text).partition(":")[0] for text in arms.values()}
    assert methods == set(RESIDUALS) - {"two_phase", "sum", "centered"}


def test_three_studies_have_one_base():
    assert len({load_study(OF_THE_REPOSITORY / name).fingerprint for name in OF_ONE_BASE}) == 1


@pytest.mark.parametrize("name", ["scaling_law", "depth", "depth_width", "dynamics"])
@pytest.mark.parametrize("is_quick", [False, True])
def test_every_point_is_possible(name, is_quick):
    folder = OF_THE_REPOSITORY / name
    for point in points(folder):
        study = load_study(folder, is_quick, point=point)
        assert study.choose(()) == tuple(study.arms)
        assert study.rates_of_reference


@pytest.mark.slow
def test_all_shapes_of_depth_width_take_the_same_compute():
    folder = OF_THE_REPOSITORY / "depth_width"
    studies = [load_study(folder, point=point) for point in points(folder)]
    budgets = [compute_of(each, "standard").total("attention") for each in studies]
    assert max(budgets) < 1.005 * min(budgets)


def test_scaling_law_has_five_sizes_over_two_orders_of_compute():
    folder = OF_THE_REPOSITORY / "scaling_law"
    studies = [load_study(folder, point=point) for point in points(folder)]
    budgets = [compute_of(each, "standard").total("attention") for each in studies]
    assert len(budgets) == 5
    assert budgets == sorted(budgets)
    assert budgets[-1] > 100 * budgets[0]


@pytest.mark.parametrize("script", ["lengths", "dynamics"])
def test_without_runs_the_figures_of_a_study_stay(script, tmp_path, monkeypatch):
    folder = tmp_path / "kimi_linear"
    shutil.copytree(OF_THE_REPOSITORY / "kimi_linear", folder)
    before = (folder / f"{script}.csv").read_bytes()
    monkeypatch.setattr(sys, "argv", [script, "--runs", str(tmp_path / "nowhere")])
    with pytest.raises(ValueError, match=r"no final .* of standard .*: attnres experiment"):
        runpy.run_path(str(folder / f"{script}.py"), run_name="__main__")
    assert (folder / f"{script}.csv").read_bytes() == before


def test_the_losses_of_conversion_are_drawn(monkeypatch):
    folder = OF_THE_REPOSITORY / "conversion"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "runs", raising=False)
    drawn = runpy.run_path(str(folder / "figure.py"))
    rows = sys.modules.pop("runs").read_rows(folder / "results.csv")
    (axes,) = drawn["losses"](rows, LIGHT).axes
    before, *lines = axes.get_lines()
    assert before.get_xdata()[0] == pytest.approx(4.5337, abs=5e-5)
    means = [line.get_xdata()[0] for line in lines if line.get_marker() == "|"]
    assert means == pytest.approx([4.2177, 4.2231, 4.4406, 4.2144], abs=5e-5)
