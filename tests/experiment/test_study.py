"""What decides a study's runs, and what makes their rows comparable."""

from dataclasses import replace

import pytest
from tiny_study import make_study, write_study

from attnres.experiment.folder import find_folder, load_study
from attnres.experiment.study import Trial, quick, trials
from attnres.residual import AttnResConfig, StandardConfig
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe

BASE = Recipe(name="base")


def test_a_recipe_is_the_base_but_for_what_the_trial_says():
    study = make_study()
    trial = Trial("final", "block", 0.5, 7)
    recipe = study.recipe(trial)
    assert recipe.name == trial.name == "final-block-lr0.5-seed7"
    assert (recipe.seed, recipe.optim.lr) == (7, 0.5)
    assert recipe.model.residual == AttnResConfig(n_blocks=2)
    neutral = replace(recipe, name="base", seed=0, model=BASE.model, optim=BASE.optim)
    assert neutral == BASE
    assert replace(recipe.model, residual=StandardConfig()) == BASE.model


def test_all_arms_try_all_rates_with_the_tuning_seed_and_the_best_with_every_seed():
    study = make_study(tuning_seed=50)
    tuning = [Trial("tuning", "full", lr, 50) for lr in (1.0, 2.0)]
    assert trials(study, "full", None) == tuning
    final = [Trial("final", "full", 2.0, seed) for seed in (0, 1, 2)]
    assert trials(study, "full", 2.0) == tuning + final


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": {"full": "attn_res"}}, "no arm 'standard'"),
        ({"learning_rates": ()}, "learning_rates"),
        ({"seeds": (0, 0)}, r"seeds must be .* got \(0, 0\)"),
        ({"tuning_seed": 1}, "tuning_seed 1 is among"),
        ({"paper": {"other": 1.0}}, "no arm 'other'"),
        ({"beside": "other"}, "no arm 'other'"),
        ({"beside": "standard"}, "beside is 'standard', from which"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make_study(**changes)


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ({"new": "attn_res:colour=red"}, "arm 'new' of study 'made': .*no setting 'colour'"),
        ({"new": "unheard_of"}, "arm 'new' of study 'made': no residual method"),
        ({"new": "attn_res:n_blocks=99"}, "arm 'new' of study 'made': .*99"),
        ({"a/b": "attn_res"}, "a/b.* folder"),
    ],
)
def test_an_arm_that_is_not_possible_is_named_where_it_is_chosen(arms, words):
    study = make_study(arms={"standard": "standard"} | arms)
    with pytest.raises(ValueError, match=words):
        study.choose(())
    assert study.choose(["standard"]) == ("standard",)


def test_chosen_arms_keep_their_order_and_must_exist():
    study = make_study()
    assert study.choose(()) == ("standard", "full", "block")
    assert study.choose(["block", "standard"]) == ("standard", "block")
    with pytest.raises(ValueError, match="no arm 'other'; there are: standard, full, block"):
        study.choose(["other"])


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"tuning_seed": 101},
        {"n_scored": 3},
        {"base": replace(BASE, n_steps=7)},
        {"base": replace(BASE, model=ModelConfig(n_layers=3))},
        {"base": replace(BASE, optim=OptimConfig(weight_decay=0.0))},
    ],
)
def test_the_fingerprint_changes_with_what_makes_rows_differ(changes):
    assert make_study(**changes).fingerprint != make_study().fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": (0, 1, 2, 3)},
        {"learning_rates": (1.0, 2.0, 4.0)},
        {"arms": {"standard": "standard"}},
        {"base": Recipe(name="other", seed=3, optim=OptimConfig(lr=0.1))},
        {"base": replace(BASE, model=ModelConfig(residual=AttnResConfig()))},
    ],
)
def test_more_seeds_rates_and_arms_keep_the_fingerprint(changes):
    assert make_study(**changes).fingerprint == make_study().fingerprint


def test_the_fingerprint_is_the_same_in_every_process():
    assert make_study().fingerprint == "5185b5e0377b"


def test_quick_has_the_same_arms_other_runs_and_a_name_of_its_own():
    study = make_study(learning_rates=(1.0, 2.0, 4.0))
    tiny = quick(study)
    assert tiny.arms == study.arms
    assert tiny.name == "made-quick"
    assert (tiny.learning_rates, tiny.seeds) == ((1.0, 4.0), (0, 1))
    assert tiny.base.model.n_layers == study.base.model.n_layers
    assert tiny.fingerprint != study.fingerprint
    assert quick(make_study(learning_rates=(1.0,))).learning_rates == (1.0,)


def test_a_study_is_found_by_folder_or_name_and_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    folder = write_study(tmp_path / "experiments" / "mine", tmp_path / "text.txt")
    assert find_folder("mine") == find_folder(str(folder)) == folder
    assert load_study(folder).name == "tiny"
    assert load_study(folder, n_seeds=4).seeds == (0, 1, 2, 3)
    assert load_study(folder, is_quick=True).name == "tiny-quick"
    with pytest.raises(ValueError, match=r"no study 'other'.* mine"):
        find_folder("other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has no attribute 'study'"),
        ("def study(): return 1", "returns 1, neither Study nor Sweep"),
        ("def study(:", "invalid syntax"),
        ("import not_there", "not_there"),
    ],
)
def test_a_file_that_is_no_study_is_refused_with_its_name(tmp_path, text, words):
    (tmp_path / "runs.py").write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        load_study(tmp_path)
    assert str(tmp_path / "runs.py") in str(caught.value)
