"""Which way of reading is chosen, said and forced."""

from typing import Any

import pytest
import torch

from attnres import AttnRes, BlockLayout
from attnres.residual import Standard, TwoPhase
from attnres.residual.costs_of_reads import COSTS, ReadCosts, plan_reads
from attnres.residual.groups import groups

FULL, BLOCKS = BlockLayout.full(24), BlockLayout.of(24, n_blocks=8)


def chosen(layout: BlockLayout, costs: ReadCosts, monkeypatch: Any, n_tokens: int = 4) -> set[bool]:
    monkeypatch.setitem(COSTS, "cpu", costs)
    plan = plan_reads(layout, groups(layout), n_tokens, 8, "cpu", "auto")
    return {group.in_two for group in plan.groups if group.n_asked}


@pytest.mark.parametrize("layout", [FULL, BLOCKS])
def test_what_is_cheaper_is_chosen(layout, monkeypatch):
    calls_alone = ReadCosts(1.0, 0, 0, 0, 0)  # phase 1 is one call more
    sources_alone = ReadCosts(0, 1.0, 0, 0, 0)
    assert chosen(layout, calls_alone, monkeypatch) == {False}
    assert True in chosen(layout, sources_alone, monkeypatch)


def test_the_costs_are_those_of_the_parts(monkeypatch):
    costs = ReadCosts(1000.0, 100.0, 10.0, 1.0, 0.5)
    monkeypatch.setitem(COSTS, "cpu", costs)
    assert costs.seconds(8, 5, 3) == 1000 + 500 + 30 + 64 + 0.5 * 5 * 7 * 8
    layout = BlockLayout((2, 2))
    plan = plan_reads(layout, groups(layout), 1, 8, "cpu", "auto")
    first, second = plan.groups
    assert (first.first, first.last, first.n_asked, first.in_two) == (0, 1, 0, False)
    assert first.one_s == first.two_s == costs.seconds(8, 2)
    assert (second.first, second.last, second.n_asked) == (2, 4, 2)
    assert second.one_s == costs.seconds(8, 2) + 2 * costs.seconds(8, 3)
    assert second.two_s == costs.seconds(8, 2, 3) + 2 * costs.seconds(8, 2)


@pytest.mark.parametrize(("reads", "n_asked"), [("one", {0}), ("two", {0, 5, 10, 15, 20} - {5})])
def test_a_choice_may_be_forced(reads, n_asked):
    residual = AttnRes(8, FULL)
    residual.reads = reads
    asked = set(residual.read_plan(1).n_asked)
    assert (asked == {0}) == (reads == "one")
    assert len(residual.read_plan(1).n_asked) == 25


def test_the_environment_says_what_a_residual_begins_with(monkeypatch):
    assert AttnRes(8, FULL).reads == "auto"
    assert TwoPhase(8, FULL).reads == "two"
    monkeypatch.setenv("ATTNRES_READS", "one")
    assert AttnRes(8, FULL).reads == "one"
    monkeypatch.setenv("ATTNRES_READS", "three")
    with pytest.raises(ValueError, match="reads must be one of auto, one, two, got 'three'"):
        AttnRes(8, FULL)


@pytest.mark.parametrize("value", ["both", None, 2])
def test_no_way_of_reading_is_refused(value):
    residual: Any = AttnRes(8, FULL)
    with pytest.raises(ValueError, match=f"reads must be one of auto, one, two, got {value!r}"):
        residual.reads = value


def test_the_choice_can_be_printed(monkeypatch):
    monkeypatch.setitem(COSTS, "cpu", ReadCosts(0, 1.0, 0, 0, 0))
    lines = str(AttnRes(8, BlockLayout((3, 3, 2))).read_plan(16)).splitlines()
    assert lines[0] == "16 tokens, D = 8, cpu; estimates in us"
    assert lines[1].split() == [
        "readers",
        "asked",
        "at",
        "once",
        "one",
        "phase",
        "two",
        "phases",
        "chosen",
    ]
    assert lines[2].split()[-1] == "one"
    assert lines[3].split()[:4] == ["3", "to", "5", "2"]
    assert lines[4].split()[-1] == "two"


def test_a_change_of_mind_holds_from_the_next_read_on():
    residual = AttnRes(8, BlockLayout((3, 3, 2))).double()
    torch.nn.init.normal_(residual.readers[4].query)  # type: ignore[union-attr]
    found = []
    with torch.no_grad():
        for ways in (["one"] * 9, ["two"] * 9, ["two", "one"] * 4 + ["two"]):
            generator = torch.Generator().manual_seed(0)
            state = residual.start(torch.randn(2, 8, generator=generator).double())
            for depth, reads in enumerate(ways[:8]):
                residual.reads = reads  # type: ignore[assignment]
                h_TD, state = residual.read(state, depth)
                state = residual.write(state, depth, h_TD.sin())
            found.append(residual.finish(state))
    for output in found[1:]:
        torch.testing.assert_close(output, found[0], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("reads", ["one", "two"])
def test_the_command_forces_it(reads, monkeypatch, capsys, tmp_path):
    from attnres.cli import models
    from attnres.models import pretrained, stream_text

    class Model:
        residual = AttnRes(8, FULL)

    loaded = pretrained.Pretrained(Model(), None)
    monkeypatch.setattr(pretrained, "load_pretrained", lambda folder: loaded)
    monkeypatch.setattr(stream_text, "stream_text", lambda *args, **kwargs: None)
    models.generate([str(tmp_path), "text", "--reads", reads])
    assert loaded.model.residual.reads == reads
    loaded.model.residual = Standard(24)
    with pytest.raises(ValueError, match=f"--reads={reads}: only attn_res and two_phase"):
        models.generate([str(tmp_path), "text", "--reads", reads])
