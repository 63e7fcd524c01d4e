"""The command line: what it teaches, and one line for each bad input."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from importlib import metadata

import pytest
from tiny_runs import assert_same_run, checkpoints, rows, snapshot

from attnres.cli import COMMANDS, main
from attnres.residual import RESIDUALS
from attnres.train.recipes import RECIPES

TINY = {
    "--name": "tiny",
    "--model.dim": "32",
    "--model.n-layers": "2",
    "--model.n-heads": "2",
    "--model.n-kv-heads": "2",
    "--model.mlp-dim": "64",
    "--model.residual": "attn_res:n_blocks=2",
    "--data.tokenizer": "bytes",
    "--n-steps": "10",
    "--batch-size": "4",
    "--seq-len": "32",
    "--save-every": "5",
    "--device": "cpu",
}


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Exit status, standard output and standard error of a command."""

    def run(*arguments):
        status = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code or 0
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def tiny(text, **changes):
    """Arguments of a training run; `model.dim=3` changes one, None drops it."""
    settings = TINY | {"--data.path": str(text)}
    settings |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    pairs = [(key, str(value)) for key, value in settings.items() if value is not None]
    return ["train", "demo", *(word for pair in pairs for word in pair)]


def assert_one_line(result, *words):
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("attnres: error: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    for word in words:
        assert word in err, err


def test_the_overview_names_every_command(call):
    for arguments in ([], ["--help"], ["-h"]):
        status, out, err = call(*arguments)
        assert (status, err) == (0, "")
        for name, command in COMMANDS.items():
            assert f"  {name}" in out
            assert (command.__doc__ or "nothing").splitlines()[0] in out


HELP = {
    "demo": ["three residuals", "resume", "--folder", "runs/demo", "optimiser steps"],
    "train": ["resume", "module:function", "--model.residual", "METHOD", "standard",
              "--n-steps", "300", "tokens", "sequences a forward pass", "--optim.lr", "0.003",
              "--data.path", "steps, as all of these", *RECIPES],
    "report": ["FOLDER", "report.html", "one folder a run"],
    "convert": ["MODEL", ".gguf", "smollm2", "-o OUT", "--n-blocks", "as the paper and FLA count",
                "bit for bit", "eps / n^2", "--revert", "AutoModelForCausalLM"],
    "generate": ["FOLDER", "PROMPT", "most likely token", "--n-tokens", "attnres train"],
    "evaluate": ["FOLDER", "lm-evaluation-harness", "HF_HUB_OFFLINE", "--tasks", "--n-shots",
                 "--limit", "--batch-size", "sequences a forward pass", "-o FOLDER", "YAML",
                 "--suite", "reasoning-likelihood", "--against", "--run-code"],
    "layout": ["--layers", "two sublayers", "--n-blocks", "Full AttnRes", "Kimi K3"],
    "cost": ["MODEL", "--residual", "METHOD", "--methods", "--json FILE", "--budget-gb", "10^9",
             "--budget-percent", "standard residual", "--chunk", "without values", "measured"],
    "pipeline-plan": ["--layers", "-P INT", "-V INT", "cross-stage caching", "partial sum",
                      "--cuts", "--whole-layers", "interleaved", "looped", "--microbatches",
                      "--figure FILE", "--link-gb-per-s", "10^9 bytes a second", "--json FILE",
                      "Nothing is run"],
}  # fmt: skip


@pytest.mark.parametrize("command", HELP)
def test_help_teaches(call, command):
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "")
    words = " ".join("".join(" " if "─" <= char <= "╿" else char for char in out).split())
    for word in HELP[command]:
        assert word.lower() in words.lower(), word


def test_the_version_is_that_of_the_package(call, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: {"attention-residuals": "9.8.7"}[name])
    assert call("--version") == (0, "attnres 9.8.7\n", "")


@pytest.mark.parametrize("arguments", [["train", "demo", "--help"], ["layout", "--layers", "2"]])
def test_output_that_nobody_reads_on_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "attnres", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_help_of_a_recipe_shows_its_own_numbers(call):
    status, out, _ = call("train", "demo", "--help")
    assert status == 0
    assert "250" in out


def test_every_field_of_a_recipe_has_its_help(call):
    _, out, _ = call("train", "demo", "--help")
    lines = [line.strip("│| ") for line in out.splitlines()]
    fields = [i for i, line in enumerate(lines) if re.match(r"--\w", line) and line != "--help"]
    silent = [
        lines[i] for i in fields if lines[i + 1].startswith("(default") and "  " not in lines[i]
    ]
    assert len(fields) > 40
    assert [line for line in silent if not line.startswith("--optim.")] == []


def test_layout_counts_layers_as_kimi_does(call):
    status, out, _ = call("layout", "--layers", 93, "--layers-per-block", 12)
    assert status == 0
    assert "186 sublayers in 8 blocks" in out
    assert "9 sources at the output read" in out


BAD_LAYOUTS = [
    (["--layers", "0"], "0"),
    (["--layers", "-2"], "-2"),
    (["--layers", "1.5"], "1.5"),
    (["--layers", "many"], "many"),
    (["--layers", "2", "--n-blocks", "0"], "n_blocks must be a positive integer, got 0"),
    (["--layers", "2", "--n-blocks", "5"], "n_blocks=5"),
    (["--layers", "2", "--n-blocks", "x"], "x"),
    (["--layers", "2", "--n-blocks", "2", "--layers-per-block", "1"], "layers_per_block=1"),
    (["--layers", "2", "--block-size", "2"], "--block-size"),
    ([], "--layers"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD_LAYOUTS)
def test_a_layout_that_cannot_be_is_one_line(call, arguments, word):
    assert_one_line(call("layout", *arguments), word)


BAD_SETTINGS = [
    *(({name: value}, value) for name in ("n_steps", "model.dim", "model.n_layers", "batch_size")
      for value in ("0", "-2", "1.5", "many")),
    ({"model.dim": "33"}, "dim=33"),
    ({"model.init_std": "2"}, "init_std must be above 0 and at most 1, got 2.0"),
    ({"model.residual": "other"}, "'other'"),
    ({"model.residual": "attn_res:block_size=2"}, "block_size has no unit"),
    ({"model.residual": "attn_res:n_blocks=two"}, "'two'"),
    ({"model.residual": "attn_res:n_blocks=1.5"}, "n_blocks must be a positive integer, got 1.5"),
    ({"model.residual": "attn_res:n_blocks=0"}, "n_blocks must be a positive integer, got 0"),
    ({"model.residual": "attn_res:n_blocks=-2"}, "n_blocks must be a positive integer, got -2"),
    ({"model.residual": "attn_res:n_blocks=5"}, "n_blocks=5 is more than the model's 4"),
    ({"model.residual": "attn_res:n_blocks=2,layers_per_block=1"}, "n_blocks=2"),
    ({"model.residual": "attn_res:n_blocks"}, "'n_blocks'"),
    ({"model.family": "gpt9"}, "'gpt9'"),
    ({"precision": "float16"}, "float16"),
    ({"optim.optimizer": "sgd"}, "sgd"),
    ({"optim.lr": "-1"}, "-1"),
    ({"learning_rate": "1"}, "--learning-rate"),
    ({"device": "nowhere"}, "'nowhere'"),
    ({"seed": str(2**64)}, str(2**64)),
    ({"name": "a/b"}, "'a/b'"),
    ({"data.path": "missing.txt"}, "missing.txt"),
    ({"data.path": "empty.txt"}, "empty.txt"),
    ({"data.path": "binary.txt"}, "binary.txt"),
    ({"data.path": "latin.txt"}, "latin.txt"),
    ({"data.path": "rows.jsonl"}, "'text'"),
    ({"data.path": "broken.jsonl"}, "broken.jsonl"),
    ({"data.path": "words.docx"}, "words.docx"),
    ({"data.text_column": ""}, "text_column"),
    ({"seq_len": "100000"}, "100000"),
    ({"seq_len": "5000"}, "5000"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "word"), BAD_SETTINGS)
def test_a_setting_that_cannot_be_is_one_line_and_leaves_no_folder(
    call, text, tmp_path, changes, word
):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "latin.txt").write_bytes("größe ".encode("latin-1") * 200)
    (tmp_path / "rows.jsonl").write_text('{"body": "words"}\n' * 50)
    (tmp_path / "broken.jsonl").write_text('{"text": "words"\n' * 50)
    (tmp_path / "words.docx").write_text("words")
    assert_one_line(call(*tiny(text, **changes)), word)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fly"], "'fly'"),
        (["train", "nothing"], "'nothing'"),
        (["train", "nothing:here"], "nothing:here"),
        (["train", "math:nothing"], "math:nothing"),
        (["train", "math:pi"], "math:pi"),
        (["train", "time:time"], "time:time"),
        (["train", "math:sqrt"], "math:sqrt"),
        (["train", ":"], "':'"),
        (["train", ":x"], "':x'; there are: demo, small, kimi_laptop"),
        (["train", "math:"], "'math:'; there are: demo, small, kimi_laptop"),
        (["train", "--name", "x"], "the recipe comes first: attnres train RECIPE --name x"),
        (["train", "demo", "--name", " "], "name must do as the name of a folder, got ' '"),
        (["train", "..x:y"], "'..x:y'"),
        (["train", "spoiled:recipe"], "spoiled:recipe"),
        (["report"], "FOLDER"),
        (["report", "missing"], "missing"),
        (["report", "."], "no run in"),
        (["demo", "--n-steps", "-3"], "-3"),
        (["demo", "--n-steps", "1.5"], "1.5"),
        (["demo", "extra"], "extra"),
    ],
)
def test_a_command_that_cannot_be_is_one_line(call, tmp_path, arguments, word):
    (tmp_path / "spoiled.py").write_text("def recipe(:\n")
    before = snapshot(tmp_path)
    assert_one_line(call(*arguments), word)
    assert {name for name in snapshot(tmp_path) if "__pycache__" not in name} == set(before)


SENTENCES = {
    "train demo --bogus": "Unrecognized options: --bogus",
    "train demo --model.dimm 3": "Unrecognized options: --model.dimm, 3; perhaps you meant "
    "--model.dim or --model.mlp-dim",
    "train demo --n-steps many": "Error parsing --n-steps: invalid literal for int() with base 10: "
    "'many'",
    "train demo --n-steps 0": "n_steps must be a positive integer, got 0",
    "train demo --model.n-layers 0": "n_layers must be a positive integer, got 0",
    "train demo --model.n-kv-heads 3": "n_heads=4 is no multiple of n_kv_heads=3",
    "train demo --model.residual other": "no residual method 'other'; there are: "
    + ", ".join(RESIDUALS),
    "report": "Missing from attnres report: FOLDER folder of an experiment: one folder a run in it "
    "(required)",
}


@pytest.mark.parametrize("arguments", SENTENCES)
def test_what_is_wrong_is_one_sentence(call, arguments):
    _, _, err = call(*arguments.split())
    assert err == f"attnres: error: {SENTENCES[arguments]}\n"


def test_a_box_in_ascii_leaves_its_sentence_alone():
    done = subprocess.run(
        command("train", "demo", "--model.n-kv-heads", "3"),
        env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "attnres: error: n_heads=4 is no multiple of n_kv_heads=3\n"


def test_a_run_trains_and_says_where_it_is_and_then_that_it_is_done(call, text, tmp_path):
    status, out, err = call(*tiny(text))
    assert status == 0, err
    assert "step 10 of 10" in out
    assert "runs/tiny" in out
    assert "shards" not in err
    assert rows(tmp_path / "runs" / "tiny", "end")
    before = snapshot(tmp_path)
    status, out, err = call(*tiny(text))
    assert (status, err) == (0, "")
    assert "tiny: already done, 10 of 10 steps" in out
    assert snapshot(tmp_path) == before


def test_another_recipe_in_the_folder_is_one_line(call, text, tmp_path):
    call(*tiny(text, n_steps=1))
    before = snapshot(tmp_path)
    assert_one_line(call(*tiny(text, n_steps=2)), "n_steps was 1, now 2", "runs/tiny")
    assert snapshot(tmp_path) == before


def test_a_recipe_of_ones_own(call, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_recipes", None)  # pages have another, so this one goes
    monkeypatch.delitem(sys.modules, "my_recipes")
    (tmp_path / "my_recipes.py").write_text(
        "from pathlib import Path\nfrom tiny_runs import recipe\n"
        "def small(): return recipe(Path('words.txt'), n_steps=2)\n"
    )
    status, _, err = call("train", "my_recipes:small", "--n-steps", 3, "--folder", "mine")
    assert status == 0, err
    assert [row["step"] for row in rows(tmp_path / "mine" / "tiny", "train")] == [1, 2, 3]


def test_report_prints_its_table_and_where_the_page_is(call, text, tmp_path):
    call(*tiny(text, n_steps=1))
    status, out, _ = call("report", "runs")
    assert status == 0
    assert "report: runs/report.html" in out
    assert "tiny" in out
    assert (tmp_path / "runs" / "report.html").stat().st_size > 1000


def command(*arguments):
    return [sys.executable, "-m", "attnres", *map(str, arguments)]


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_a_damaged_checkpoint_is_one_line(text, tmp_path, call):
    own = tiny(text, n_steps=60, save_every=2, log_every=1, validate_every=2)
    assert call(*own, "--folder", "whole")[0] == 0
    process = subprocess.Popen(
        command(*own), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    checkpoint = tmp_path / "runs" / "tiny" / "checkpoint"
    while not list(checkpoint.glob("step-*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip() == "attnres: interrupted; the same command resumes"
    newest = checkpoint / checkpoints(tmp_path / "runs" / "tiny")[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    done = subprocess.run(command(*own), capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    if done.returncode == 0:
        assert len(lines) == 1
        assert re.match(r"attnres: damaged checkpoint passed over: .*step-\d+: model", lines[0])
        assert_same_run(tmp_path / "runs" / "tiny", tmp_path / "whole" / "tiny")
    else:  # the only one there was
        assert lines[-1].startswith("attnres: error: no checkpoint is whole")


@pytest.mark.slow
@pytest.mark.parametrize("limit_bytes", [1000, 30_000, 125_000])
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(text, tmp_path, call, limit_bytes):
    own = tiny(text)
    assert call(*own, "--folder", "whole")[0] == 0
    for file in (tmp_path / "cache").rglob("*.safetensors"):
        file.unlink()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    done = subprocess.run(
        command(*own), preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr
    assert call(*own)[0] == 0
    assert_same_run(tmp_path / "runs" / "tiny", tmp_path / "whole" / "tiny")
