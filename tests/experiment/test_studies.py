"""The studies of this repository."""

import pytest

from attnres.experiment.folder import OF_THE_REPOSITORY, load_study
from attnres.residual import RESIDUALS

OF_ONE_BASE = ("methods", "components", "block_size")
STUDIES = (*OF_ONE_BASE, "kimi_linear")


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
