import math
import subprocess
import sys

import numpy as np
import pytest

from attnres.analysis import plot
from attnres.analysis.canvas import LIGHT, png
from attnres.analysis.runs import load_run, load_runs
from attnres.analysis.weights import entropy_over_training, has_weights, weight_grid


def test_weights_are_placed_by_their_source(make, tmp_path):
    run = load_run(make.run(tmp_path, "block", method="attn_res", sizes=[2, 2], rms=[1.0] * 4))
    grid_RS, names = weight_grid(run)
    assert names == ["b0", "b1", "b2", "partial"]
    nan, half, third = math.nan, 1 / 2, 1 / 3
    expected_RS = [
        [1, nan, nan, nan],
        [half, nan, nan, half],
        [half, half, nan, nan],
        [third, third, nan, third],
        [third, third, third, nan],
    ]
    np.testing.assert_allclose(grid_RS, expected_RS)


def test_full_has_no_partial(make, tmp_path):
    run = load_run(make.run(tmp_path, "full", method="attn_res", sizes=[1] * 3, rms=[1.0] * 3))
    grid_RS, names = weight_grid(run)
    assert names == ["b0", "b1", "b2", "b3"]
    assert np.isfinite(grid_RS).sum(1).tolist() == [1, 2, 3, 4]


def test_even_weights_have_the_largest_entropy(folder):
    standard, block, _ = load_runs(folder)
    assert not has_weights(standard)
    assert entropy_over_training(standard) == ([], [])
    steps, spreads = entropy_over_training(block)
    assert steps == [50, 100]
    assert spreads == pytest.approx([1, 1])


def test_running_mean_is_centred_and_leaves_a_line_as_it_is():
    assert plot.window(30) == 3
    np.testing.assert_allclose(plot.running_mean([0.0] * 14 + [3.0] + [0.0] * 15)[13:16], 1)
    np.testing.assert_allclose(plot.running_mean([*range(60)])[3:-3], range(3, 57))
    assert len(plot.running_mean([])) == 0
    assert np.isnan(plot.running_mean([1.0, math.nan, 1.0])).tolist() == [False, True, False]


def points(line):
    return np.asarray(line.get_xydata()).T.tolist()


def test_curves_hold_the_numbers_of_the_runs(folder):
    axes, difference = plot.validation_loss(load_runs(folder), LIGHT).axes
    assert [points(line)[0] for line in axes.get_lines()] == [[50, 100]] * 3
    _, block, _ = difference.get_lines()
    assert points(block)[1] == pytest.approx([-0.1, -0.1])


def test_block_ends_are_marked(folder):
    _, stream = plot.output_rms(load_runs(folder), LIGHT).axes
    marks = [points(line) for line in stream.get_lines() if line.get_marker() == "D"]
    assert [mark for mark in marks if mark[0]] == [[[2, 5, 8, 11], [3, 3, 3, 3]]]


def test_a_wide_range_is_drawn_on_a_logarithm(make, tmp_path):
    run = load_run(make.run(tmp_path, "run", rms=[2.0**depth for depth in range(12)]))
    _, stream = plot.output_rms([run], LIGHT).axes
    assert stream.get_yscale() == "log"


def test_a_long_legend_takes_no_room_from_the_curves(make, tmp_path):
    paths = [make.run(tmp_path, f"a-rather-long-name-for-a-run-in-a-sweep-{i}") for i in range(9)]
    runs = [load_run(path) for path in paths]
    few, many = (plot.train_loss(runs[:n], LIGHT) for n in (1, 9))
    heights = []
    for figure in (few, many):
        png(figure)
        heights.append(figure.axes[0].get_position().height * figure.get_figheight())
    assert heights[1] == pytest.approx(heights[0], rel=0.05)


def test_runs_are_told_apart_by_more_than_colour(folder):
    lines = plot.gradient_norm(load_runs(folder), LIGHT).axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) == 3
    assert len({str(line.get_marker()) for line in lines}) == 3


@pytest.mark.slow
def test_matplotlib_is_imported_late_and_without_global_state(folder):
    code = f"""
import sys
from pathlib import Path
from attnres.analysis import plot, report
from attnres.analysis.canvas import DARK, png
assert not {{"matplotlib", "jinja2"}} & set(sys.modules)
png(plot.gradient_norm(report.load_runs(Path({str(folder)!r})), DARK))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_is_drawn_as_it_is(make, tmp_path):
    run = load_run(make.run(tmp_path, r"$\frac$_{", rms=[1.0] * 4))
    assert png(plot.train_loss([run], LIGHT)).startswith(b"\x89PNG")
