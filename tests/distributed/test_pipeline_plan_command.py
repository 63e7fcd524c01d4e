"""`attnres pipeline-plan`: policies side by side, the same in JSON, a figure, errors in a line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from call_command import call_command

from attnres import BlockLayout
from attnres.distributed import Machine, plan_pipeline, schedule, simulate

FIGURE_3 = ["--layers", "4", "--n-blocks", "4", "-P", "4", "-V", "2"]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Exit status, the words of standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: call_command("pipeline-plan", arguments, capsys)


def test_figure_3_of_the_paper_on_the_screen(call):
    status, out, err = call(*FIGURE_3)
    assert (status, err) == (0, "")
    for words in [
        "4 stages with 2 chunks each",
        "0 0 0 b0 the embedding the embedding the embedding",
        "1 1 1 b1 b0 + p b0 + p b0 + p",
        "5 1 5 b3 b0 to b2 + p b1, b2 + p b2 + p",
        "7 3 7 b4 b0 to b3 + p b2, b3 + p b3 + p",
        "vectors sent a token, forward 23 17 15",
        "blocks of these but the embedding 12 10 8",
        "A step of 16 micro-batches, interleaved, simulated",
        "one vector a hop, 7",
    ]:
        assert words in out, words


def test_json_is_what_the_functions_give(call, tmp_path):
    arguments = ["--layers", 5, "--sublayers-per-block", 4, "-P", 2, "-V", 2, "--cuts", 3, 4, 7]
    machine = ["--sublayer-ms", 2, "--link-gb-per-s", 1, "--latency-us", 5, "--dtype", "float32"]
    size = ["--tokens", 100, "--dim", 8, "--microbatches", 4, "--schedule", "looped"]
    assert call(*arguments, *machine, *size, "--json", "x")[0] == 0
    found = json.loads((tmp_path / "x").read_text())
    assert found["schedule"] == "looped"
    layout = BlockLayout.of(10, sublayers_per_block=4)
    for keep in ("nothing", "received", "all"):
        plan = plan_pipeline(layout, 2, 2, (3, 4, 7), keep)
        assert [hop["tensors"] for hop in found[keep]["hops"]] == [
            [*hop.names] for hop in plan.hops
        ]
        orders = schedule("looped", 2, 2, 4)
        assumed = Machine(sublayer_s=2e-3, bytes_per_s=1e9, latency_s=5e-6)
        timeline = simulate(plan, orders, 3200, assumed)
        for name in ("idle_share", "total_s"):
            assert found[keep][name] == pytest.approx(getattr(timeline, name))
        for name in ("bytes_by_hop", "peak_bytes"):
            assert found[keep][name] == [*getattr(timeline, name)]
        assert [copy["home"] for copy in found[keep]["copies"]] == [c.home for c in plan.copies]


def test_layers_are_kept_whole_on_request(call, tmp_path):
    arguments = ["--layers", 27, "--layers-per-block", 3, "-P", 4, "-V", 2, "--whole-layers"]
    assert call(*arguments, "--json", "x")[0] == 0
    chunks = json.loads((tmp_path / "x").read_text())["all"]["chunks"]
    assert [chunk["start"] for chunk in chunks] == [0, 8, 16, 24, 30, 36, 42, 48]


def test_the_figure_is_drawn(call, tmp_path):
    assert call(*FIGURE_3, "--figure", "plan.png")[0] == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert call("--layers", 4, "-P", 3, "--figure", "plan.svg")[0] == 0
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layers", "2", "-P", "5"], "5 chunks are more than the model's 4 sublayers"),
        (["--layers", "2", "-P", "3", "--whole-layers"], "more than the model's 2 layers"),
        (["--layers", "0", "-P", "1"], "layers must be a positive integer, got 0"),
        (["--layers", "4", "-P", "0"], "stages must be a positive integer, got 0"),
        ([*FIGURE_3, "--schedule", "1f1b"], "1f1b runs one chunk a rank"),
        ([*FIGURE_3, "--microbatches", "9"], "divisible by 2"),
        ([*FIGURE_3, "--cuts", "3"], "8 chunks are made by 7 cuts, got 1: [3]"),
        ([*FIGURE_3, "--cuts", "3", "--whole-layers"], "--cuts cannot be given besides"),
        ([*FIGURE_3, "--layers-per-block", "1"], "exactly one of"),
        ([*FIGURE_3, "--tokens", "0"], "tokens must be a positive integer, got 0"),
        ([*FIGURE_3, "--link-gb-per-s", "0"], "bytes_per_s must be positive, got 0.0"),
        ([*FIGURE_3, "--figure", "plan.txt"], "a figure is saved as .svg or .png"),
        (["--layers", "4"], "-P"),
    ],
)
def test_what_cannot_be_is_one_line(call, arguments, words):
    status, _, err = call(*arguments)
    assert status == 2
    assert err.startswith("attnres: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_planning_loads_neither_the_process_groups_of_torch_nor_transformers():
    code = (
        "import sys, attnres.distributed\n"
        "print([name for name in ('torch.distributed.pipelining', 'transformers', 'matplotlib')"
        " if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
