"""A run that was stopped, killed or damaged goes on to the very same end."""

import errno
import json
import multiprocessing
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from tiny_runs import (
    RESIDUALS,
    assert_same_run,
    checkpoints,
    interrupt_at,
    recipe,
    repeatable,
    rows,
    snapshot,
    train_until,
)

from attnres.residual import AttnResConfig
from attnres.train import checkpoint
from attnres.train.loop import train
from attnres.train.optim import OptimConfig

SAVED_OFTEN: dict[str, Any] = {"save_every": 3, "validate_every": 3, "probe_every": 3}
VARIANTS = {
    "muon": {"optimizer": "muon"},
    "accumulated": {"n_accumulations": 2, "batch_size": 2},
    "wsd": {"log_every": 2},
    "depth at a rate of its own": {
        "optim": OptimConfig(lr=1e-2, warmup_steps=2, depth_lr_scale=3.0)
    },
}


@pytest.mark.parametrize(
    ("residual", "changes"),
    [*((residual, {}) for residual in RESIDUALS), *(("block", each) for each in VARIANTS.values())],
    ids=[*RESIDUALS, *VARIANTS],
)
def test_a_stopped_run_ends_as_if_it_had_not_been(text, tmp_path, residual, changes):
    own = recipe(text, residual, **changes)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 6)
    assert checkpoints(tmp_path / "run") == ["step-00000005"]
    steps = []
    train(own, tmp_path / "run", lambda step, figures: steps.append(step))
    assert min(steps) > 5
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_how_a_run_is_run_may_change(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 6)
    train(replace(own, timeout_s=9, data_parallel="ddp", schedule="gpipe"), tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_stopped_before_its_first_checkpoint_starts_anew(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 3)
    assert len(rows(tmp_path / "run", "train")) == 3
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_stopped_at_every_step_in_turn(text, tmp_path):
    own = recipe(text, save_every=1)
    train(own, tmp_path / "whole")
    for step in range(1, 10):
        train_until(own, tmp_path / "run", step + 1)
        assert checkpoints(tmp_path / "run")[-1] == f"step-{step:08d}"
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_half_a_line_of_metrics_is_cut(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 6)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("length", [5, 16, 25, 50])
def test_a_run_is_done_only_with_a_whole_last_line(text, tmp_path, length):
    own = recipe(text)
    train(own, tmp_path / "run")
    expected = repeatable(tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]) + lines[-1][: min(length, len(lines[-1]) - 1)])
    train(own, tmp_path / "run")
    assert repeatable(tmp_path / "run") == expected


def test_a_truncated_checkpoint_is_named_and_the_one_before_serves(text, tmp_path):
    own = recipe(text, **SAVED_OFTEN)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 8)
    assert checkpoints(tmp_path / "run") == ["step-00000003", "step-00000006"]
    path = tmp_path / "run" / "checkpoint" / "step-00000006"
    weights = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(weights[:-100])
    steps = []
    with pytest.warns(UserWarning, match=r"step-00000006.*model\.safetensors has \d+ bytes"):
        train(own, tmp_path / "run", lambda step, figures: steps.append(step))
    assert min(steps) == 4
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert checkpoint.newest(tmp_path / "run" / "checkpoint") == path.with_name("step-00000010")


def test_a_run_with_no_whole_checkpoint_is_left_alone(text, tmp_path):
    own = recipe(text)
    train_until(own, tmp_path / "run", 6)
    (tmp_path / "run" / "checkpoint" / "step-00000005" / "state.json").write_text("{}")
    before = snapshot(tmp_path)
    with (
        pytest.warns(UserWarning, match="step-00000005"),
        pytest.raises(ValueError, match=r"no checkpoint is whole: .*step-00000005"),
    ):
        train(own, tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_a_finished_run_is_not_touched(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "run")
    before = snapshot(tmp_path)
    text.unlink()  # it does not even look at the data
    train(own, tmp_path / "run", interrupt_at(0))
    before.pop(str(text))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("last", [3, 6, None], ids=["unsaved", "saved", "done"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 7}, "seed was 0, now 7"),
        ({"n_steps": 20}, "n_steps was 10, now 20"),
        ({"residual": "full"}, "model.residual.n_blocks was 2, now None"),
        ({"residual": "standard"}, "model.residual.method was 'attn_res', now 'standard'"),
        ({"optimizer": "muon"}, "optim.optimizer was 'adamw', now 'muon'"),
    ],
)
def test_another_recipe_is_refused_and_changes_nothing(text, tmp_path, last, changes, words):
    if last is None:
        train(recipe(text), tmp_path / "run")
    else:
        train_until(recipe(text), tmp_path / "run", last)
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=words):
        train(recipe(text, **changes), tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_a_recipe_file_that_is_no_json_is_named(text, tmp_path):
    train_until(recipe(text), tmp_path / "run", 6)
    file = tmp_path / "run" / "recipe.json"
    file.write_text(file.read_text()[:40])
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        train(recipe(text), tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_a_checkpoint_of_another_layout_is_refused(text, tmp_path, monkeypatch):
    own = recipe(text)
    train_until(own, tmp_path / "run", 6)
    file = tmp_path / "run" / "recipe.json"
    saved = json.loads(file.read_text())
    saved["model"]["residual"]["n_blocks"] = 3
    file.write_text(json.dumps(saved))
    three_blocks = recipe(text)
    object.__setattr__(three_blocks.model, "residual", AttnResConfig(n_blocks=3))
    before = snapshot(tmp_path)
    monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ValueError, match=r"step-00000005.*\[2, 2\].*\[2, 1, 1\]"):
        train(three_blocks, tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_other_text_in_the_data_file_is_refused_and_changes_nothing(text, tmp_path):
    own = recipe(text)
    train(own, tmp_path / "whole")
    train_until(own, tmp_path / "run", 6)
    words = text.read_text()
    text.write_text(words.replace("a", "e", 1))
    before = snapshot(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"step-00000005 was .* other tokens than {text} now"):
        train(own, tmp_path / "run")
    assert snapshot(tmp_path / "run") == before
    text.write_text(words)
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_disk_that_is_full_at_a_checkpoint_costs_that_checkpoint_alone(
    text, tmp_path, monkeypatch
):
    own = recipe(text, **SAVED_OFTEN)
    train(own, tmp_path / "whole")
    write, n_calls = checkpoint.write_tensors, [0]

    def full(path, tensors, metadata):
        n_calls[0] += 1
        if n_calls[0] == 5:  # the second file of the second checkpoint
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, tensors, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(OSError, match=r"No space left on device.*step-00000006"):
            train(own, tmp_path / "run")
    assert checkpoints(tmp_path / "run") == ["step-00000003"]
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2, 3, 4, 5, 6]
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_killed_after_its_last_checkpoint_only_finishes(text, tmp_path, monkeypatch):
    from attnres.models import AttnResForCausalLM

    own = recipe(text)
    train(own, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(AttnResForCausalLM, "save_pretrained", interrupt_at(0))
        with pytest.raises((KeyboardInterrupt, TypeError)):
            train(own, tmp_path / "run")
    assert rows(tmp_path / "run", "end") == []
    train(own, tmp_path / "run", interrupt_at(0))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(text, tmp_path):
    own = recipe(text, n_steps=40, save_every=2, validate_every=4, probe_every=8)
    train(own, tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_runs", "attnres.models"])
    moments = random.Random(0)
    for _ in range(8):
        process = context.Process(target=train, args=(own, tmp_path / "run"))
        process.start()
        before = n_lines(tmp_path / "run")
        while n_lines(tmp_path / "run") == before and process.is_alive():
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.join()
    train(own, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def n_lines(path):
    """Lines and their length; it differs as soon as the run has written."""
    metrics = path / "metrics.jsonl"
    return metrics.read_bytes() if metrics.exists() else b""
