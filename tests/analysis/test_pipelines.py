"""The figure of a pipeline holds the timeline's numbers."""

from typing import Any

import pytest
from matplotlib.colors import to_hex

from attnres import BlockLayout
from attnres.analysis.canvas import DARK, LIGHT, png
from attnres.analysis.pipelines import timeline_figure
from attnres.distributed import Machine, plan_pipeline, schedule, simulate

LAYOUT = BlockLayout.of(8, n_blocks=4)


def timelines():
    plans = {
        "nothing": plan_pipeline(LAYOUT, 2, 2, keep="nothing"),
        "all": plan_pipeline(LAYOUT, 2, 2, keep="all"),
    }
    orders = schedule("interleaved", 2, 2, 4)
    machine = Machine(bytes_per_s=1.0)
    return {name: simulate(plan, orders, 1, machine) for name, plan in plans.items()}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_bar_a_step_where_it_ran(theme):
    found = timelines()
    figure = timeline_figure(found, theme)
    for axes, (name, timeline) in zip(figure.axes, found.items(), strict=False):
        bars: list[Any] = [*axes.patches]
        times = [time for bar in bars for time in (bar.get_x(), bar.get_x() + bar.get_width())]
        assert times == pytest.approx([time for span in timeline.spans for time in span[2:]])
        ranks = [round(bar.get_y() + bar.get_height() / 2) for bar in bars]
        assert ranks == [span.rank for span in timeline.spans]
        colors = [to_hex(bar.get_facecolor()) for bar in bars]
        expected = [theme.colors[1 + (span.step.kind == "backward")] for span in timeline.spans]
        assert colors == expected
        paler = [bar.get_alpha() < 1 for bar in bars]
        assert paler == [span.step.chunk >= 2 for span in timeline.spans]
        assert axes.get_title(loc="left").startswith(f"{name}: {timeline.total_s:.4g} s")
    assert png(figure).startswith(b"\x89PNG")


def test_the_last_panel_has_what_each_hop_sends():
    found = timelines()
    axes = timeline_figure(found, LIGHT).axes[-1]
    groups: list[Any] = [*axes.containers]
    heights = [[bar.get_height() for bar in bars] for bars in groups]
    assert heights == [[hop.n_vectors for hop in timeline.plan.hops] for timeline in found.values()]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0 to 1", "1 to 2", "2 to 3"]
