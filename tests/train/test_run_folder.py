"""What a run leaves in its folder."""

import json
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import RESIDUALS, assert_same_run, recipe, rows, train_until

from attnres.analysis.runs import load_run
from attnres.residual import residual_to_json
from attnres.train import run_folder
from attnres.train.data import load_data, pack
from attnres.train.loop import train
from attnres.train.metrics import Metrics, whole_until
from attnres.train.run_folder import describe_environment, write_atomically

FIELDS = {
    "start": {"n_params", "n_residual_params", "layout_sizes"},
    "train": {"n_tokens", "loss", "grad_norm", "lr", "tokens_per_s"},
    "validation": {"loss", "bits_per_byte"},
    "probe": {
        "output_rms",
        "stream_rms",
        "grad_norm",
        "weights",
        "weights_entropy",
        "weights_max",
        "untrained",
        "mixing",
        "mixing_rank",
        "mixing_row_sums",
        "mixing_entropy",
        "mixing_reach",
        "mixing_sink",
        "mixing_sink_share",
    },
    "end": {"peak_memory_bytes"},
}
STEPS = {"start": [0], "train": [2, 4, 5], "validation": [3, 5], "probe": [0, 4, 5], "end": [5]}


@pytest.fixture(params=RESIDUALS)
def residual(request):
    return request.param


@pytest.fixture
def run(text, tmp_path, residual):
    own = recipe(text, residual, n_steps=5, log_every=2, validate_every=3, probe_every=4)
    train(own, tmp_path / "run")
    return tmp_path / "run"


def test_metrics_have_their_kinds_fields_and_lengths(run, residual):
    found = rows(run)
    assert {row["kind"] for row in found} == set(FIELDS)
    assert [row["kind"] for row in found][:: len(found) - 1] == ["start", "end"]
    for row in found:
        assert set(row) == {"kind", "step"} | FIELDS[row["kind"]]
    assert {kind: [row["step"] for row in rows(run, kind)] for kind in FIELDS} == STEPS
    for row in rows(run, "probe"):
        for key in ("output_rms", "stream_rms", "grad_norm"):
            assert len(row[key]) == 4
        assert [len(each) for each in row["mixing"]] == [5] * 5
        for key in ("weights", "weights_entropy", "weights_max"):
            assert row[key] is None if residual == "standard" else len(row[key]) == 5
    expected = [residual != "standard", False, False]
    assert [row["untrained"] for row in rows(run, "probe")] == expected
    assert [row["n_tokens"] for row in rows(run, "train")] == [256, 512, 640]
    (start,) = rows(run, "start")
    sizes = {"standard": [], "block": [2, 2], "full": [1, 1, 1, 1]}
    assert start["layout_sizes"] == sizes[residual]
    assert start["n_residual_params"] == (0 if residual == "standard" else 4 * 2 * 32)
    (end,) = rows(run, "end")
    assert end["peak_memory_bytes"] > 2**20
    assert load_run(run).is_finished


def test_recipe_and_environment_are_written_down(run, text, residual):
    saved = json.loads((run / "recipe.json").read_text())
    assert saved["model"]["residual"] == residual_to_json(RESIDUALS[residual])
    assert (saved["n_steps"], saved["data"]["path"]) == (5, str(text))
    environment = json.loads((run / "env.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert {"python", "transformers", "numpy"} <= set(environment["versions"])
    assert environment["n_threads"] == torch.get_num_threads()
    root = Path(__file__).parents[2]
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        assert environment["commit"].rstrip("+") == done.stdout.strip()
    assert re.fullmatch(r"([0-9a-f]{40}\+?)?", environment["commit"])


def test_a_commit_is_marked_where_the_package_was_changed(tmp_path, monkeypatch):
    package = tmp_path / "attnres" / "train"
    package.mkdir(parents=True)
    monkeypatch.setattr(run_folder, "__file__", str(package / "run_folder.py"))
    assert describe_environment()["commit"] == ""
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    (package / "run_folder.py").write_text("1")
    for arguments in (["init"], ["add", "."], [*names, "commit", "-m", "one"]):
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True)
    (tmp_path / "results.csv").write_text("beside the package")
    commit = describe_environment()["commit"]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (package / "run_folder.py").write_text("2")
    assert describe_environment()["commit"] == commit + "+"


def test_an_environment_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_environment()["commit"] == ""


def test_a_run_from_before_a_setting_was_there_goes_on(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 6)
    saved = json.loads((tmp_path / "run" / "recipe.json").read_text())
    del saved["optim"]["depth_lr_scale"]
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(saved))
    scaled = replace(own, optim=replace(own.optim, depth_lr_scale=2.0))
    with pytest.raises(ValueError, match=r"optim\.depth_lr_scale was 1\.0, now 2\.0"):
        train(scaled, tmp_path / "run")
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_tensorboard_reads_the_losses(run):
    board = read_board(run)
    for kind in ("train", "validation"):
        expected = {row["step"]: row["loss"] for row in rows(run, kind)}
        assert scalars(board, f"{kind}/loss") == pytest.approx(expected)
    last = rows(run, "probe")[-1]
    assert scalars(board, "probe/output_rms/003")[5] == pytest.approx(last["output_rms"][3])


@pytest.mark.parametrize("last", [3, 7])
def test_tensorboard_shows_no_step_twice_after_a_stop(text, tmp_path, last):
    train_until(recipe(text), tmp_path / "run", last)
    time.sleep(1.1)  # TensorBoard reads files by the second of their making
    train(recipe(text), tmp_path / "run")
    board = read_board(tmp_path / "run")
    for tag, kind in {"train/loss": "train", "probe/grad_norm/000": "probe"}.items():
        steps = [event.step for event in board.Scalars(tag)]
        assert steps == [row["step"] for row in rows(tmp_path / "run", kind)]
    assert [event.step for event in board.Scalars("start/n_params")] == [0]


def test_the_model_reloads_and_has_the_last_validation_loss(run, text):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import attnres.models  # noqa: F401  registers the model with transformers

    model = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    own = json.loads((run / "recipe.json").read_text())
    data = load_data(recipe(text).data)
    assert tokenizer.decode(data.validation_tokens[:40].tolist()) in text.read_text()
    sequences_RT = pack(data.validation_tokens, own["seq_len"])
    stride = -(-len(sequences_RT) // own["n_validation_sequences"])
    batch_BT = sequences_RT[::stride].long()
    with torch.no_grad():
        loss = model(input_ids=batch_BT, labels=batch_BT).loss.item()
    assert loss == pytest.approx(rows(run, "validation")[-1]["loss"], rel=1e-6)


def test_a_run_that_says_why_it_has_no_probes_goes_on(tmp_path):
    metrics = Metrics(tmp_path, purge_from=0)
    metrics.write("start", 0, n_params=3, layout_sizes=[2], without_probe="it is cut into stages")
    metrics.write("train", 1, loss=2.5)
    metrics.close()
    file = tmp_path / "metrics.jsonl"
    assert whole_until(file, 1) == file.read_bytes()
    for row in ({"kind": "train", "without_probe": ""}, {"kind": "start", "without_probe": 3}):
        file.write_text(json.dumps(row | {"step": 0}) + "\n")
        with pytest.raises(ValueError, match=r"line 1 of .* is not a metric: .*without_probe"):
            whole_until(file, 1)


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(tmp_path, monkeypatch):
    write_atomically(tmp_path / "words", "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "words", "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def read_board(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard")).Reload()


def scalars(board, tag):
    return {event.step: event.value for event in board.Scalars(tag)}
