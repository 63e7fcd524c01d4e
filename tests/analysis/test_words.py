import math

import numpy as np
import pytest

from attnres.analysis import probe_words, words
from attnres.analysis.canvas import LIGHT
from attnres.analysis.heat_maps import depth_weights
from attnres.analysis.report import render
from attnres.analysis.runs import load_run, load_runs
from attnres.residual import RESIDUALS


def trend(make, folder, **kwargs):
    (sentence,) = probe_words.stream_trends([load_run(make.run(folder, "run", **kwargs))])
    return sentence


def test_growth_of_the_running_sum_is_said(make, tmp_path):
    sentence = trend(make, tmp_path, rms=make.growing)
    assert "grows with depth" in sentence
    assert "6.5 times" in sentence
    assert "correlation with depth 1.00" in sentence


SLOW = [1 + 0.01 * depth for depth in range(12)]
SPIKE = [*SLOW[::-1], 3.0]


@pytest.mark.parametrize("rms", [[1.0] * 12, SLOW, SPIKE])
def test_no_growth_is_said(make, tmp_path, rms):
    assert "no clear growth" in trend(make, tmp_path, rms=rms)


def test_shrinking_is_said(make, tmp_path):
    assert "shrinks with depth" in trend(make, tmp_path, rms=make.growing[::-1])


def test_a_reset_at_block_ends_is_said(make, tmp_path):
    sentence = trend(make, tmp_path, method="attn_res", sizes=make.blocks, rms=make.resetting)
    assert "falls back at block ends: it is lower after 3 of 3" in sentence
    assert "median of 0.33 times" in sentence
    assert "largest RMS is 3." in sentence


@pytest.mark.parametrize("shape", ["flat", "growing"])
def test_no_reset_is_said(make, tmp_path, shape):
    rms = getattr(make, shape)
    sentence = trend(make, tmp_path, method="attn_res", sizes=make.blocks, rms=rms)
    assert "shows no clear fall at this size at block ends" in sentence


def test_full_has_no_running_sum(make, tmp_path):
    sentence = trend(make, tmp_path, method="attn_res", sizes=[1] * 12, rms=make.flat)
    assert "no sum builds up; the RMS lies between 1 and 1.04" in sentence


@pytest.mark.parametrize(
    ("method", "why"),
    [("window", "every sublayer is a block of its own"), ("grn", "every layer begins a sum")],
)
def test_a_method_without_a_sum_of_all_outputs_has_no_running_sum(make, tmp_path, method, why):
    sentence = trend(make, tmp_path, method=method, sizes=[], rms=make.growing)
    assert why in sentence
    assert "grows" not in sentence


def test_the_running_sum_of_delta_goes_on_over_block_ends(make, tmp_path):
    sentence = trend(make, tmp_path, method="delta", sizes=make.blocks, rms=make.growing)
    assert "grows with depth" in sentence


def test_one_block_has_no_end_to_fall_back_at(make, tmp_path):
    assert "one block only" in trend(make, tmp_path, method="attn_res", sizes=[12])


def test_a_probe_with_nan_is_said(make, tmp_path):
    assert "not positive numbers" in trend(make, tmp_path, rms=[math.nan, *make.growing[1:]])


def test_a_run_without_probe_is_said(make, folder):
    make.edit(folder / "full", lambda rows: [row for row in rows if row["kind"] != "probe"])
    runs = load_runs(folder)
    assert probe_words.stream_trends(runs)[-1] == "full: no probe yet."
    assert len(probe_words.gradient_trends(runs)) == 2


def test_unevenness_of_the_gradient(folder):
    sentence = probe_words.gradient_trends(load_runs(folder))[0]
    assert sentence == "standard: the largest gradient, at depth 0, is 2.22 times the smallest."


def test_model_data_and_length_are_said(folder):
    model, training = words.compared(load_runs(folder))
    assert "3 language models of the llama family" in model
    assert "6 layers, that is 12 sublayers" in model
    assert "2.61 million parameters" in model
    assert "100 steps of 16 sequences of 256 tokens, 0.41 million tokens" in training
    assert "Data: corpus plays." in training


def test_the_sum_of_the_centered_form_is_that_of_all_outputs(make, tmp_path):
    sentence = trend(make, tmp_path, method="centered", sizes=make.blocks, rms=make.flat)
    assert "shows no clear growth with depth" in sentence


def test_depth_weights_of_zero_queries_are_called_untrained(make, tmp_path):
    paths = [
        make.run(tmp_path, name, method="centered", sizes=make.blocks) for name in ("made", "old")
    ]
    make.edit(paths[0], lambda rows: [row | {"untrained": True} for row in rows])
    make.edit(make.run(tmp_path, "sum"), lambda rows: [row | {"untrained": True} for row in rows])
    runs = load_runs(tmp_path)
    (sentence,) = probe_words.untrained(runs)
    assert sentence.startswith("made: depth weights are untrained.")
    page = render(runs, "words")
    assert page.count("depth weights are untrained") == 1
    figure = depth_weights(runs, LIGHT)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["made (untrained)", "old"]


def test_every_method_is_said_in_a_sentence(make, tmp_path):
    for method in RESIDUALS:
        make.run(tmp_path, method, method=method, sizes=[] if method == "standard" else make.blocks)
    said = dict(words.methods(load_runs(tmp_path)))
    assert all(said.values())
    two_phases = said["two_phase, 4 blocks of 3"]
    assert two_phases.startswith(said["attn_res, 4 blocks of 3"])
    assert two_phases.endswith("read once for several sublayers; the model is that of attn_res.")


def test_an_ablation_is_told_from_what_it_ablates(make, tmp_path):
    changes = {"kernel": "sigmoid", "key_norm": False}
    residual = {"method": "attn_res", "n_blocks": 4, "eps": 1e-6, **changes}
    model = {"family": "llama", "dim": 128, "n_layers": 6, "residual": residual}
    make.run(tmp_path, "changed", method="attn_res", sizes=make.blocks, model=model)
    make.run(tmp_path, "whole", method="attn_res", sizes=make.blocks)
    (name, changed), (_, whole) = words.methods(load_runs(tmp_path))
    assert name == "attn_res, 4 blocks of 3, kernel=sigmoid, key_norm=False"
    assert changed == f"An ablation, with kernel=sigmoid, key_norm=False, of this: {whole}"


def test_what_mixing_says_is_a_sentence(make, tmp_path):
    make.run(tmp_path, "run")
    (sentence,) = probe_words.mixing(load_runs(tmp_path))
    assert sentence == (
        "run: off-diagonal rank 1; rows sum to 1 to 13; the read before the final norm reaches 6 "
        "outputs back on average; of what is not newest, the embedding weighs most, 0.25 of a row."
    )
    sink = {"mixing_sink": 3, "mixing": [[1.0]]}
    make.edit(
        tmp_path / "run",
        lambda rows: [row | sink if row["kind"] == "probe" else row for row in rows],
    )
    assert "the output of depth 2 weighs most" in probe_words.mixing(load_runs(tmp_path))[0]
    make.edit(
        tmp_path / "run",
        lambda rows: [row | {"mixing": None} if row["kind"] == "probe" else row for row in rows],
    )
    assert probe_words.mixing(load_runs(tmp_path)) == []


def test_one_seed_is_said_to_show_no_noise(folder):
    runs = load_runs(folder)
    assert "one seed cannot show" in words.seeds(runs)[0]
    assert words.best(runs).endswith("One seed each: see the note below.")


def test_a_repeat_of_one_seed_is_not_a_second_seed(folder, make):
    make.run(folder, "standard-again")
    assert "one seed cannot show" in words.seeds(load_runs(folder))[0]


def test_seeds_give_a_mean_and_a_deviation(folder, make):
    path = make.run(folder, "standard-1", seed=1)
    make.edit(path, lambda rows: [row | {"loss": row.get("loss", 0) + 0.2} for row in rows])
    first, *others = words.seeds(load_runs(folder))
    mean = 4.1 + 3 * math.exp(-5)
    assert f"standard, standard-1: 2 seeds, final validation loss {mean:.4f} on average" in first
    assert f"standard deviation {0.2 / math.sqrt(2):.4f} over 2 finished runs" in first
    assert others == ["block: 1 seed.", "full: 1 seed."]


def test_best_is_taken_at_the_end_among_finite_losses(folder, make):
    make.edit(folder / "standard", lambda rows: [row | {"loss": math.nan} for row in rows])
    best = words.best(load_runs(folder))
    assert best.startswith(
        f"Lowest validation loss at step 100: block, {3.9 + 3 * math.exp(-5):.4f}."
    )


def test_best_is_taken_where_all_runs_were_validated(folder, make):
    make.edit(folder / "block", lambda rows: [row for row in rows if row["step"] <= 50])
    make.edit(folder / "full", lambda rows: [row | {"loss": math.nan} for row in rows])
    best = words.best(load_runs(folder))
    assert best.startswith("Lowest validation loss at step 50: block, ")
    assert "0.1000 below standard" in best


def test_runs_on_other_data_have_no_best_one(folder, make):
    make.run(folder, "other", data={"corpus": "novels"})
    best = words.best(load_runs(folder))
    assert best == "The losses of the runs are not comparable: they differ in data.corpus."


def test_what_is_unfinished_or_not_finite_is_said(folder, make):
    def spoil(rows):
        late = {"loss": math.nan}
        return [row | late if row["step"] > 60 else row for row in rows if row["kind"] != "end"]

    assert words.unfinished(load_runs(folder)) == []
    make.edit(folder / "block", spoil)
    assert words.unfinished(load_runs(folder)) == [
        "block is unfinished: 100 of 100 steps so far.",
        "block: the train loss is not finite from step 70.",
        "block: the validation loss is not finite from step 100.",
    ]


def test_rank_correlation_of_equal_values_is_nothing():
    assert probe_words.rank_correlation(np.ones(5)) == 0
    assert probe_words.rank_correlation(np.array([1.0, 2.0, 4.0])) == pytest.approx(1)
    assert probe_words.rank_correlation(np.array([1.0, 3.0, 2.0])) == pytest.approx(0.5)
