"""Figures of depth mixing matrices hold the numbers, whatever the method."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from attnres.analysis.canvas import DARK, LIGHT, png
from attnres.analysis.heat_maps import depth_mixing, mixing_figure, save_mixing
from attnres.analysis.runs import load_runs

STANDARD = np.tril(np.ones((5, 5)))
SIGNED = STANDARD * np.array([1, -0.25, 2, 0, 1])
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_images()]


def scale(figure: Any) -> Any:
    (bar,) = (axes for axes in figure.axes if axes.get_ylabel().startswith("weight over"))
    return bar


@THEMES
def test_each_method_has_a_panel_by_the_root_of_its_own_largest_weight(theme):
    figure = mixing_figure({"standard": STANDARD, "signed": SIGNED}, theme)
    first, second = panels(figure)
    assert first.get_title() == "standard\nlargest 1"
    assert second.get_title() == "signed\nlargest 2"
    drawn = second.get_images()[0].get_array()
    assert drawn[4].tolist() == pytest.approx([0.5**0.5, -(0.125**0.5), 1, 0, 0.5**0.5])
    assert np.array_equal(np.ma.getmaskarray(drawn), np.triu(np.ones((5, 5), bool), k=1))
    assert png(figure).startswith(b"\x89PNG")


@THEMES
def test_zero_is_the_paper_and_the_sign_is_a_colour(theme):
    image = panels(mixing_figure({"signed": SIGNED}, theme))[0].get_images()[0]
    colors = [image.cmap(image.norm(x))[:3] for x in (-1, 0, 1)]
    assert colors[1] == pytest.approx(to_rgb(theme.paper), abs=0.01)
    (red, _, blue), _, (other_red, _, other_blue) = colors
    assert red > blue
    assert other_blue > other_red


def test_rows_are_readers_and_columns_outputs():
    (axes,) = panels(mixing_figure({"standard": STANDARD}))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["emb", "1", "2", "3", "4"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3", "final"]


def test_the_scale_goes_below_zero_where_a_weight_does():
    assert scale(mixing_figure({"a": STANDARD})).get_ylim() == (0, 1)
    assert scale(mixing_figure({"a": STANDARD, "b": SIGNED})).get_ylim() == (-1, 1)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda x: np.asarray(x).tolist()])
def test_tokens_are_averaged(kind):
    by_token = np.stack([STANDARD, 3 * STANDARD], axis=-1).reshape(5, 5, 1, 2)
    (axes,) = panels(mixing_figure({"a": kind(by_token)}))
    assert axes.get_title() == "a\nlargest 2"


@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_any_number_of_methods_fits(n):
    figure = mixing_figure({f"method {i}": STANDARD for i in range(n)})
    assert len(panels(figure)) == n


def test_a_matrix_of_zeros_or_nan_is_drawn():
    figure = mixing_figure({"zeros": 0 * STANDARD, "nan": np.nan * STANDARD})
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 5, 2)])
def test_what_is_no_matrix_is_refused_by_name(shape):
    with pytest.raises(ValueError, match=r"that of 'mine' is \[4"):
        mixing_figure({"mine": np.ones(shape)})


def test_no_matrix_is_refused():
    with pytest.raises(ValueError, match="needs at least one"):
        mixing_figure({})


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_saved_figure_is_the_same_every_time(tmp_path, suffix, start):
    path, again = tmp_path / f"mixing.{suffix}", tmp_path / "again" / f"mixing.{suffix}"
    again.parent.mkdir()
    save_mixing({"standard": STANDARD, "signed": SIGNED}, path)
    save_mixing({"standard": STANDARD, "signed": SIGNED}, again)
    assert path.read_bytes().startswith(start)
    assert path.read_bytes() == again.read_bytes()


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"saved as \.svg or \.png, got 'mixing.pdf'"):
        save_mixing({"standard": STANDARD}, tmp_path / "mixing.pdf")


def test_runs_without_a_matrix_have_no_panel(folder, make):
    def drop(rows):
        return [row | ({"mixing": None} if row["kind"] == "probe" else {}) for row in rows]

    make.edit(folder / "full", drop)
    titles = [axes.get_title() for axes in panels(depth_mixing(load_runs(folder), LIGHT))]
    assert titles == ["standard\nlargest 1", "block\nlargest 1"]
