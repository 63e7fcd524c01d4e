"""Colour and mark of each run."""

from attnres.analysis.canvas import LIGHT
from attnres.analysis.run_styles import styles
from attnres.analysis.runs import load_run


def test_runs_of_one_residual_share_a_colour_and_differ_in_their_mark(make, tmp_path):
    methods = {"a": "standard", "b": "attn_res", "c": "standard"}
    paths = [make.run(tmp_path, name, method=method) for name, method in methods.items()]
    a, b, c = styles([load_run(path) for path in paths], LIGHT)
    assert a["color"] == c["color"] != b["color"]
    assert a["marker"] == b["marker"] != c["marker"]
