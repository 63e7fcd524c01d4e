"""Dynamics of made-up runs against figures done by hand."""

import math

import pytest
from call_command import call_command

from attnres.analysis.dynamics import dynamics, growth_exponent, loss_gap, ratio, widening
from attnres.analysis.runs import load_run

WEIGHTS = [  # 4 sublayers, Full: reader by source
    [1.0],
    [0.5, 0.5],
    [0.2, 0.6, 0.2],
    [0.1, 0.5, 0.1, 0.3],
    [0.2, 0.2, 0.1, 0.1, 0.4],
]


def set_probe(make, path, **values):
    def edit(rows):
        return [row | values if row["kind"] == "probe" else row for row in rows]

    make.edit(path, edit)


@pytest.fixture
def full(make, tmp_path):
    path = make.run(tmp_path, "full", method="attn_res", sizes=[1] * 4)
    entropies = [0.0, math.log(2), 0.5 * math.log(3), 0.25 * math.log(4), math.log(5)]
    set_probe(make, path, weights=WEIGHTS, weights_entropy=entropies)
    return load_run(path)


def test_shares_by_hand(full):
    """Readers 2 (attention) and 3 (MLP) have three sources or more; the output read is neither."""
    last = dynamics(full)[-1]
    assert last.embedding_before_attention == 0.2
    assert last.embedding_before_mlp == 0.1
    assert last.newest_before_attention == 0.2
    assert last.newest_before_mlp == 0.3
    assert last.newest_is_largest == 0
    assert last.entropy == pytest.approx((1 + 0.5 + 0.25 + 1) / 4)
    assert last.reset is None


def test_a_sink_is_weighed_where_it_is_not_the_newest(full):
    """Source 1: 0.6 of 3, 0.5 of 4 and 0.2 of 5 sources, so 1.8, 2 and 1 even shares."""
    last = dynamics(full)[-1]
    assert last.sink == "b1"
    assert last.sink_weight == pytest.approx((1.8 + 2 + 1) / 3)


def test_a_partial_sum_is_no_sink(make, tmp_path):
    """Blocks of 2 over 4: b1 is the newest at reader 2, and weighs 0.7 of 3 at reader 3."""
    path = make.run(tmp_path, "block", method="attn_res", sizes=[2, 2], rms=[1.0, 2.0, 0.5, 3.0])
    weights = [[1.0], [0.4, 0.6], [0.5, 0.5], [0.1, 0.7, 0.2], [0.3, 0.3, 0.4]]
    set_probe(make, path, weights=weights)
    last = dynamics(load_run(path))[-1]
    assert last.sink == "b1"
    assert last.sink_weight == pytest.approx((0.7 * 3 + 0.3 * 3) / 2)
    assert last.reset == 0.25


def test_growth_and_ratio_by_hand():
    assert growth_exponent([math.sqrt(depth) for depth in range(1, 9)]) == pytest.approx(0.5)
    assert growth_exponent([3.0] * 5) == pytest.approx(0, abs=1e-12)
    assert growth_exponent([1.0]) is None
    assert growth_exponent([1.0, math.nan]) is None
    assert growth_exponent(None) is None
    assert ratio([2.0, 0.5, 1.0]) == 4
    assert ratio([2.0, 0.0]) is None
    assert ratio([]) is None


def test_a_method_without_weights_has_no_shares(make, tmp_path):
    last = dynamics(load_run(make.run(tmp_path, "standard")))[-1]
    assert (last.entropy, last.sink, last.embedding_before_mlp) == (None, None, None)
    assert last.gradient_ratio == pytest.approx(2 / 0.9)


def test_the_gap_and_how_it_widens(folder):
    standard, full = (load_run(folder / name) for name in ("standard", "full"))
    assert loss_gap(full, standard) == [(50, pytest.approx(-0.1)), (100, pytest.approx(-0.1))]
    assert widening([(10, -0.1), (50, -0.2), (100, -0.5)]) == pytest.approx(0.3)
    assert widening([(50, -0.1), (100, -0.2)]) is None


def test_the_command_writes_table_rows_and_figure(folder, capsys):
    status, out, err = call_command("dynamics", [folder], capsys)
    assert (status, err) == (0, "")
    less = "\N{MINUS SIGN}0.1000"
    assert f"block less standard, by step: 50: {less}, 100: {less}." in out
    rows = (folder / "dynamics.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 2
    assert rows[0].startswith("run,step,growth")
    assert "| Gradient max/min | 2.222 | 2.222 | 2.222 |" in (folder / "dynamics.md").read_text()
    assert (folder / "dynamics.png").is_file()
    assert (folder / "dynamics-dark.png").is_file()


def test_a_run_without_a_probe_is_named_and_no_gap_is_minus_zero(folder, make, capsys):
    make.edit(folder / "full", lambda rows: [row for row in rows if row["kind"] != "probe"])

    def nearly_standard(rows):
        for row in rows:
            if row["kind"] == "validation":
                row["loss"] += 0.1 - 1e-6
        return rows

    make.edit(folder / "block", nearly_standard)
    _, out, _ = call_command("dynamics", [folder], capsys)
    page = (folder / "dynamics.md").read_text()
    for text in (out, page):
        assert "Without a probe yet: full." in text
        assert "block less standard, by step: 50: +0.0000, 100: +0.0000." in text
    assert "| full |" not in page


def test_a_folder_without_probes_is_refused(make, tmp_path, capsys):
    path = make.run(tmp_path / "runs", "standard")
    make.edit(path, lambda rows: [row for row in rows if row["kind"] != "probe"])
    status, _, err = call_command("dynamics", [tmp_path / "runs"], capsys)
    assert status == 2
    assert "has a probe yet" in err
