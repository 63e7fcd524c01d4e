"""What a run computes: batches, gradients, losses, precision."""

import math
from dataclasses import replace

import pytest
import torch
from implementations import needs_compiler
from tiny_runs import RESIDUALS, final_weights, recipe, repeatable, rows, train_until
from torch import nn

from attnres.residual import AttnRes
from attnres.train import loop, optim
from attnres.train.data import DataConfig, load_data
from attnres.train.engine import OneProcess
from attnres.train.loop import train


@pytest.fixture
def seen(monkeypatch):
    """The tokens of every training forward pass."""
    batches, loss = [], OneProcess._loss

    def recording(engine, tokens_BT):
        if engine.module.training:
            batches.append(tokens_BT.clone())
        return loss(engine, tokens_BT)

    monkeypatch.setattr(OneProcess, "_loss", recording)
    return batches


def take(seen):
    tokens = torch.cat(seen)
    seen.clear()
    return tokens


def test_the_order_of_the_text_depends_on_the_seed_and_the_step_alone(text, tmp_path, seen):
    orders = []
    for residual in RESIDUALS:
        train(recipe(text, residual, n_steps=3), tmp_path / residual)
        orders.append(take(seen))
    narrow = recipe(text)
    narrow = replace(narrow, n_steps=3, model=replace(narrow.model, dim=16, n_layers=1, mlp_dim=32,
                                                      residual=RESIDUALS["standard"]))  # fmt: skip
    train(narrow, tmp_path / "narrow")
    orders.append(take(seen))
    train(recipe(text, n_steps=3, batch_size=2, n_accumulations=2), tmp_path / "accumulated")
    orders.append(take(seen))
    train_until(recipe(text, save_every=1), tmp_path / "stopped", 2)
    train(recipe(text, save_every=1), tmp_path / "stopped")
    resumed = take(seen)
    assert len(resumed) == 4 * (10 + 1)  # step 2 was done and not saved
    orders.append(torch.cat([resumed[:4], resumed[8:16]]))
    for order in orders:
        assert torch.equal(order, orders[0])
    assert len(orders[0].unique(dim=0)) == 12
    train(recipe(text, n_steps=3, seed=1), tmp_path / "other")
    assert not torch.equal(take(seen), orders[0])


def test_accumulation_gives_the_gradient_of_the_whole_batch(text, tmp_path, monkeypatch):
    gradients, clip = [], nn.utils.clip_grad_norm_

    def recording(parameters, max_norm):
        parameters = list(parameters)
        gradients.append([parameter.grad.clone() for parameter in parameters])
        return clip(parameters, max_norm)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", recording)
    train(recipe(text, n_steps=1, batch_size=8), tmp_path / "whole")
    train(recipe(text, n_steps=1, batch_size=4, n_accumulations=2), tmp_path / "parts")
    whole, parts = (rows(tmp_path / name, "train")[0] for name in ("whole", "parts"))
    assert parts["n_tokens"] == whole["n_tokens"] == 256
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert parts["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    for part, exact in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(part, exact, rtol=1e-4, atol=1e-6)


def test_the_loss_falls_and_validation_covers_the_held_out_text(text, tmp_path):
    train(recipe(text, n_steps=40, n_validation_sequences=10**6), tmp_path / "run")
    losses = [row["loss"] for row in rows(tmp_path / "run", "train")]
    assert losses[0] == pytest.approx(math.log(257), rel=0.02)
    assert losses[-1] < losses[0] - 1
    validation = rows(tmp_path / "run", "validation")[-1]
    assert validation["loss"] == pytest.approx(losses[-1], abs=0.5)
    tokens = load_data(DataConfig(path=str(text), tokenizer="bytes"))
    bytes_per_token = tokens.n_validation_bytes / len(tokens.validation_tokens)
    bits = validation["loss"] / math.log(2) / bytes_per_token
    assert validation["bits_per_byte"] == pytest.approx(bits)


def test_a_last_smaller_validation_batch_weighs_by_its_sequences(text, tmp_path):
    losses = []
    for batch_size in (3, 8):
        own = recipe(text, n_steps=1, n_validation_sequences=8)
        torch.manual_seed(0)
        run = loop._prepare(replace(own, batch_size=batch_size), load_data(own.data))
        with torch.no_grad():  # move the weights: every sequence has a loss of its own
            for parameter in run.engine.module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        losses.append(loop.validate(run)["loss"])
        assert run.engine.module.training
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_bfloat16_is_autocast_and_the_weights_stay_float32(text, tmp_path):
    train(recipe(text, n_steps=3), tmp_path / "float32")
    train(recipe(text, n_steps=3, precision="bfloat16"), tmp_path / "bfloat16")
    plain, low = (
        [row["loss"] for row in rows(tmp_path / name, "train")] for name in ("float32", "bfloat16")
    )
    assert low != plain
    assert low == pytest.approx(plain, rel=0.02)
    assert {tensor.dtype for tensor in final_weights(tmp_path / "bfloat16").values()} == {
        torch.float32
    }


def test_gradient_checkpointing_changes_no_bit(text, tmp_path, monkeypatch):
    n_reads, read = [0], AttnRes.read

    def counting(self, state, depth):
        n_reads[0] += 1
        return read(self, state, depth)

    monkeypatch.setattr(AttnRes, "read", counting)
    train(recipe(text, n_steps=5), tmp_path / "plain")
    n_plain, n_reads[0] = n_reads[0], 0
    train(recipe(text, n_steps=5, checkpoint_gradients=True), tmp_path / "checkpointed")
    assert n_reads[0] == n_plain + 5 * 4  # the four sublayers of each step are run again
    assert repeatable(tmp_path / "checkpointed") == repeatable(tmp_path / "plain")


@needs_compiler
@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_an_eager_one(text, tmp_path):
    own = recipe(text, n_steps=3)
    own = replace(own, model=replace(own.model, n_layers=1))  # half the time of the compiler
    train(own, tmp_path / "eager")
    train(replace(own, compile=True), tmp_path / "compiled")
    eager, compiled = (
        [row["loss"] for row in rows(tmp_path / name) if "loss" in row]
        for name in ("eager", "compiled")
    )
    assert compiled == pytest.approx(eager, rel=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_and_harms_nothing(text, tmp_path, monkeypatch):
    own, set_lr, lrs = recipe(text), optim.set_lr, [0.0]
    train(own, tmp_path / "whole")

    def noting(*arguments):
        lrs.append(set_lr(*arguments))
        return lrs[-1]

    def spoiled(engine, tokens_BT):
        late = engine.module.training and lrs[-1] < 0.6 * own.optim.lr
        return loss(engine, tokens_BT) * (math.nan if late and lrs[-1] != own.optim.lr / 2 else 1)

    loss = OneProcess._loss
    with monkeypatch.context() as patch:
        patch.setattr(optim, "set_lr", noting)
        patch.setattr(OneProcess, "_loss", spoiled)
        with pytest.raises(FloatingPointError, match="the loss is nan at step 6 of tiny"):
            train(own, tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2, 3, 4, 5, 6]
    train(own, tmp_path / "run")
    assert repeatable(tmp_path / "run") == repeatable(tmp_path / "whole")


def test_a_gradient_that_is_not_finite_is_never_stepped_nor_saved(text, tmp_path, monkeypatch):
    loss = OneProcess._loss

    def spoiled(engine, tokens_BT):
        zero = engine.module.lm_head.weight.sum() * 0
        return loss(engine, tokens_BT) + (zero.sqrt() if engine.module.training else 0)

    monkeypatch.setattr(OneProcess, "_loss", spoiled)
    with pytest.raises(FloatingPointError, match="gradient norm is nan at step 0 of tiny"):
        train(recipe(text, save_every=1), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_named(text, tmp_path, device):
    with pytest.raises(ValueError, match=device):
        train(recipe(text, device=device), tmp_path / "run")
    assert not (tmp_path / "run").exists()
