import json
import os
import warnings

import pytest
import torch
from torch import nn

from attnres.train import checkpoint
from attnres.train.optim import OptimConfig, OptimizerName, build_optimizers, set_lr


class Model(nn.Module):
    """Tied embedding and head, dropout, a buffer, a reader's query: what a checkpoint must hold."""

    def __init__(self, dim=8):
        super().__init__()
        self.embed = nn.Embedding(11, dim)
        self.query = nn.Parameter(torch.zeros(dim))
        self.hidden = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(dim, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens_B):
        h_BD = self.dropout(self.norm(self.hidden(self.embed(tokens_B)) * (1 + self.query)))
        return self.head(h_BD)


def build(optimizer: OptimizerName = "muon", dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = Model().to(dtype)
    config = OptimConfig(optimizer=optimizer, warmup_steps=3)
    return model, build_optimizers(model, config), config


def train(run, steps):
    model, optimizers, config = run
    losses = []
    for step in steps:
        tokens_B = torch.arange(step, step + 6) % 11
        loss = nn.functional.cross_entropy(model(tokens_B).float(), (tokens_B + 1) % 11)
        loss.backward()
        set_lr(optimizers, config, step, 10)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save(folder, step, run=None, **options):
    model, optimizers, _ = run or build()
    return checkpoint.save(folder, step, model, optimizers, {"note": f"at {step}"}, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_is_the_uninterrupted_run(tmp_path, optimizer, dtype):
    whole = build(optimizer, dtype)
    losses = train(whole, range(10))

    first = build(optimizer, dtype)
    first_losses = train(first, range(5))
    path = save(tmp_path, 5, first)
    train(first, range(5, 7))  # what was saved is not what still moves

    second = build(optimizer, dtype, seed=1)
    train(second, range(1))  # stale weights and state are replaced
    state = checkpoint.load(path, second[0], second[1])
    assert state == {"note": "at 5", "step": 5}
    assert first_losses + train(second, range(5, 10)) == losses
    assert second[0].head.weight is second[0].embed.weight
    for name, tensor in whole[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], tensor), name
    for old, new in zip(whole[1], second[1], strict=True):
        assert_same_state(old, new)


def assert_same_state(old, new):
    for one, two in zip(old.param_groups, new.param_groups, strict=True):
        for param, other in zip(one["params"], two["params"], strict=True):
            assert old.state[param].keys() == new.state[other].keys() != set()
            for key, value in old.state[param].items():
                assert new.state[other][key].dtype == value.dtype
                assert torch.equal(new.state[other][key], value), key


def test_state_keeps_its_own_dtype(tmp_path):
    """A float32 momentum of a bfloat16 parameter, which load_state_dict would round."""
    model, optimizers, _ = run = build("muon", torch.bfloat16)
    momentum = torch.full((8, 8), 1 / 3)
    optimizers[1].state[model.hidden.weight]["momentum_buffer"] = momentum
    path = save(tmp_path, 1, run)
    optimizers[1].state.clear()
    checkpoint.load(path, model, optimizers)
    assert torch.equal(optimizers[1].state[model.hidden.weight]["momentum_buffer"], momentum)


def test_load_removes_state_that_was_not_saved(tmp_path):
    path = save(tmp_path, 0)
    run = build()
    train(run, range(1))
    checkpoint.load(path, run[0], run[1])
    assert not any(optimizer.state for optimizer in run[1])


@pytest.mark.parametrize("fused", [False, True])
def test_step_count_is_where_the_update_wants_it(fused):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], fused=fused)
    assert checkpoint.on_host(optimizer, "step") is not fused
    assert not checkpoint.on_host(optimizer, "exp_avg")


def test_layout_of_the_folder(tmp_path):
    from safetensors.torch import load_file

    run = build()
    train(run, range(1))
    path = save(tmp_path / "run" / "checkpoint", 100, run)
    assert path == tmp_path / "run" / "checkpoint" / "step-00000100"
    assert names(path) == ["manifest.json", *sorted(checkpoint.FILES)]
    weights = load_file(path / "model.safetensors")
    assert "embed.weight" in weights
    assert "head.weight" not in weights
    saved = load_file(path / "optimizer.safetensors")
    assert {"0/query/exp_avg", "0/query/step", "1/hidden.weight/momentum_buffer"} <= set(saved)
    assert load_file(path / "rng.safetensors")["cpu"].dtype == torch.uint8
    assert json.loads((path / "state.json").read_text()) == {"note": "at 100", "step": 100}
    modes = {file.stat().st_mode for file in path.iterdir()}
    assert len(modes) == 1


def test_the_newest_remain(tmp_path):
    for step in (8, 9, 10, 100_000_000):
        save(tmp_path, step)
        assert checkpoint.newest(tmp_path) == tmp_path / f"step-{step:08d}"
    assert names(tmp_path) == ["step-00000010", "step-100000000"]
    save(tmp_path, 20, keep=1)  # a run that was wound back
    assert names(tmp_path) == ["step-00000020", "step-100000000"]


def test_a_step_is_replaced(tmp_path):
    run = build()
    save(tmp_path, 3, run)
    train(run, range(1))
    path = save(tmp_path, 3, run)
    assert names(tmp_path) == ["step-00000003"]
    weight = run[0].embed.weight.detach().clone()
    other = build(seed=1)
    checkpoint.load(path, other[0], other[1])
    assert torch.equal(other[0].embed.weight, weight)


def test_leftovers_go_with_the_next_save(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".tmp-step-00000002").mkdir()
    (tmp_path / ".tmp-step-00000002" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-notes").mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000001"
    assert ".tmp-step-00000002" in names(tmp_path)
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-notes"]


def test_cuda_generator_travels_too(tmp_path, monkeypatch):
    state, restored = torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    run = build()
    path = save(tmp_path, 1, run)
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=available: here)
        checkpoint.load(path, run[0], run[1])
        assert len(restored) == available
    assert torch.equal(restored[0], state)


def truncate(path):
    os.truncate(path / "model.safetensors", 40)


def flip(path):
    data = bytearray((path / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "optimizer.safetensors").write_bytes(data)


DAMAGES = {
    "model.safetensors has 40 bytes in place of": truncate,
    "optimizer.safetensors differs from its sha256": flip,
    "No such file or directory: '.*manifest.json'": lambda path: (path / "manifest.json").unlink(),
    "No such file or directory: '.*rng.safetensors'": lambda p: (p / "rng.safetensors").unlink(),
    "manifest.json is damaged": lambda path: (path / "manifest.json").write_text("[]"),
    "manifest.json has format 9, known are 1 and 2": lambda path: (
        path / "manifest.json"
    ).write_text('{"format": 9}'),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path, what):
    run = build()
    train(run, range(1))
    older, newer = save(tmp_path, 1, run), save(tmp_path, 2, run)
    DAMAGES[what](newer)
    with pytest.warns(UserWarning, match=f"^[^\n]*{newer}: .*{what}[^\n]*$"):
        assert checkpoint.newest(tmp_path) == older
    with pytest.raises(ValueError, match=f"{newer}: .*{what}"):
        checkpoint.load(newer, run[0], run[1])


def test_every_flipped_byte_of_the_manifest_is_seen(tmp_path):
    path = save(tmp_path, 1)
    good = (path / "manifest.json").read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        (path / "manifest.json").write_bytes(bad)
        assert checkpoint.damage(path), place


def test_no_checkpoint_and_no_whole_checkpoint(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "absent") is None
    paths = [save(tmp_path, 1), save(tmp_path, 2)]
    for path in paths:
        truncate(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=f"{paths[1]}.*{paths[0]}"):
            checkpoint.newest(tmp_path)


def rebuilt(change):
    model = build()[0]
    change(model)
    return model, build_optimizers(model, OptimConfig(optimizer="muon"))


def untie(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


CHANGES = {
    r"hidden.weight is \(8, 8\) torch.float32 in the checkpoint, \(9, 8\) torch.float32 in": (
        lambda model: setattr(model, "hidden", nn.Linear(8, 9))
    ),
    "hidden.weight is .* torch.float32 in the checkpoint, .* torch.bfloat16 in the model": (
        lambda model: model.hidden.bfloat16()
    ),
    "head.weight is absent in the checkpoint": untie,
    r"query is \(8,\) torch.float32 in the checkpoint, absent in the model": (
        lambda model: delattr(model, "query")
    ),
    "optimizer 0 has query only in the checkpoint": lambda m: m.query.requires_grad_(False),
    r"optimizers \['AdamW', 'Muon'\] in the checkpoint, \['AdamW'\]": (
        lambda model: model.hidden.weight.requires_grad_(False)
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_model_is_refused_and_left_alone(tmp_path, what):
    path = save(tmp_path, 1)
    model, optimizers = rebuilt(CHANGES[what])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"^{path}: [^\n]*{what}[^\n]*$"):
        checkpoint.load(path, model, optimizers)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    model, optimizers, _ = build()
    foreign = torch.optim.AdamW([nn.Parameter(torch.zeros(7))])
    with pytest.raises(ValueError, match=r"optimizer 0 has a parameter of shape \(7,\)"):
        checkpoint.save(tmp_path, 1, model, [foreign], {})
    optimizers[0].state[model.query]["count"] = 3
    with pytest.raises(ValueError, match="0/query/count is 3"):
        checkpoint.save(tmp_path, 1, model, optimizers, {})
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path, 1, model, [], {"path": tmp_path})
    for step, keep in ((-1, 2), (1, 0)):
        with pytest.raises(ValueError, match=f"step {step}, keep {keep}"):
            checkpoint.save(tmp_path, step, model, [], {}, keep=keep)
    with pytest.raises(ValueError, match=r"step 4.*step 5"):
        checkpoint.save(tmp_path, 5, model, [], {"step": 4})
    assert names(tmp_path) == []
