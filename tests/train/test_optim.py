import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from attnres.residual import Standard, Tuning
from attnres.train import optim
from attnres.train.muon import Muon
from attnres.train.optim import OptimConfig, build_optimizers, lr_factor, param_groups, set_lr


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(4))
        self.key_weight = nn.Parameter(torch.ones(4))
        self.mix = nn.Parameter(torch.ones(2, 2))


class Depth(Standard):
    """A residual method with vectors and a matrix, in a module inside it."""

    def __init__(self):
        super().__init__(n_sublayers=2)
        self.reader = Reader()


class Tuned(Depth):
    """A method that has the matrix decayed, and the vectors trained at a tenth."""

    def tuning(self) -> tuple[Tuning, ...]:
        vectors = ("reader.query", "reader.key_weight")
        return (Tuning(vectors, lr_scale=0.1), Tuning(("reader.mix",), 3.0, is_decayed=True))


class Mistuned(Depth):
    def __init__(self, *tuning):
        super().__init__()
        self.named = tuning

    def tuning(self):
        return tuple(Tuning(names) for names in self.named)


class Model(nn.Module):
    """One parameter of every kind; the attention's query is an ordinary matrix with a bias."""

    def __init__(self, residual=None):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.query = nn.Linear(4, 4)
        self.experts = nn.Parameter(torch.ones(2, 4, 4))
        self.conv = nn.Conv1d(4, 4, 3, groups=4, bias=False)
        self.decay = nn.Parameter(torch.ones(1, 1, 4, 1))
        self.latents = nn.ParameterDict({"query": nn.Parameter(torch.ones(3, 4))})
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.RMSNorm(4)
        self.residual = residual or Depth()
        self.pool = nn.ParameterDict({"query": nn.Parameter(torch.ones(4))})
        self.head = nn.Linear(4, 6, bias=False)

    def get_output_embeddings(self):
        return self.head


def names_of(groups):
    return {group.name: list(group.param_names) for group in groups}


def test_every_kind_of_parameter_has_its_group():
    assert names_of(param_groups(Model(), OptimConfig())) == {
        "matrices": ["query.weight", "latents.query"],
        "stacks": ["experts"],
        "kernels": ["conv.weight"],
        "embeddings": ["embed.weight", "head.weight"],
        "vectors": ["decay", "scale", "query.bias", "norm.weight", "pool.query"],
        "depth": ["residual.reader.query", "residual.reader.key_weight", "residual.reader.mix"],
    }


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_trainable_parameter_is_in_exactly_one_group(optimizer, tied):
    model = Model()
    model.norm.weight.requires_grad = False
    if tied:
        model.head.weight = model.embed.weight
    groups = param_groups(model, OptimConfig(optimizer=optimizer))
    grouped = [id(param) for group in groups for param in group.params]
    trainable = [id(param) for param in model.parameters() if param.requires_grad]
    assert sorted(grouped) == sorted(trainable)
    named = [
        named for group in groups for named in zip(group.param_names, group.params, strict=True)
    ]
    assert all(model.get_parameter(name) is param for name, param in named)


def test_tied_head_is_an_embedding_without_being_announced():
    model = nn.ModuleDict({"head": nn.Linear(4, 6, bias=False), "embed": nn.Embedding(6, 4)})
    model["embed"].weight = model["head"].weight
    assert names_of(param_groups(model, OptimConfig())) == {"embeddings": ["head.weight"]}


def test_depth_and_vectors_are_not_decayed():
    config = OptimConfig(weight_decay=0.3)
    decay = {group.name: group.weight_decay for group in param_groups(Model(), config)}
    matrices = dict.fromkeys(("matrices", "stacks", "kernels", "embeddings"), 0.3)
    assert decay == {**matrices, "vectors": 0.0, "depth": 0.0}
    config = replace(config, depth_weight_decay=0.2)
    decay = {group.name: group.weight_decay for group in param_groups(Model(), config)}
    assert (decay["depth"], decay["vectors"]) == (0.2, 0.0)


def depth_groups(model, **settings):
    groups = param_groups(model, OptimConfig(weight_decay=0.3, **settings))
    return [group for group in groups if group.name == "depth"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_method_says_how_its_parameters_are_trained(optimizer):
    vectors, matrix = depth_groups(Model(Tuned()), optimizer=optimizer, depth_lr_scale=2.0)
    assert vectors.param_names == ("residual.reader.query", "residual.reader.key_weight")
    assert (vectors.weight_decay, vectors.lr_scale, vectors.optimizer) == (0.0, 0.2, "adamw")
    assert matrix.param_names == ("residual.reader.mix",)
    assert (matrix.weight_decay, matrix.lr_scale, matrix.optimizer) == (0.3, 6.0, "adamw")
    vectors, matrix = depth_groups(Model(Tuned()), depth_weight_decay=0.2)
    assert (vectors.weight_decay, matrix.weight_decay) == (0.2, 0.3)
    others = [group for group in param_groups(Model(Tuned()), OptimConfig(depth_lr_scale=2.0))
              if group.name != "depth"]  # fmt: skip
    assert {group.lr_scale for group in others} == {1.0}


def test_a_method_in_another_is_trained_as_the_outer_says():
    outer = Tuned()
    outer.reader.inner = Depth()
    outer.tuning = lambda: (Tuning(tuple(n for n, _ in outer.named_parameters()), 5.0),)
    (group,) = depth_groups(Model(outer))
    assert (len(group.params), group.lr_scale) == (6, 5.0)


@pytest.mark.parametrize(
    ("tuning", "words"),
    [
        ([("reader.query",)], "Mistuned does not say how its parameter reader.key_weight is"),
        ([("reader.query", "reader.query")], "Mistuned.tuning names reader.query twice"),
        ([("reader.query",), ("reader.query",)], "Mistuned.tuning names reader.query twice"),
        ([("query",)], "Mistuned.tuning names query but has it not"),
    ],
)
def test_a_tuning_that_does_not_fit_the_parameters_is_refused(tuning, words):
    with pytest.raises(ValueError, match=words):
        param_groups(Model(Mistuned(*tuning)), OptimConfig())


def test_a_frozen_parameter_needs_no_tuning():
    model = Model(Mistuned(("reader.query",)))
    model.residual.reader.key_weight.requires_grad = False
    model.residual.reader.mix.requires_grad = False
    (group,) = depth_groups(model)
    assert group.param_names == ("residual.reader.query",)


def test_muon_gets_hidden_matrices_and_stacks_of_them_alone():
    groups = param_groups(Model(), OptimConfig(optimizer="muon"))
    assert {group.name for group in groups if group.optimizer == "muon"} == {"matrices", "stacks"}
    config = OptimConfig(optimizer="muon", muon_momentum=0.9, weight_decay=0.3, beta2=0.8)
    adamw, muon = build_optimizers(Model(), config)
    assert (type(adamw), type(muon)) == (torch.optim.AdamW, Muon)
    group, stacks = sorted(muon.param_groups, key=lambda group: group["name"])
    assert stacks["param_names"] == ["experts"]
    assert group["param_names"] == ["query.weight", "latents.query"]
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.3)
    groups = {group["name"]: group for group in adamw.param_groups}
    assert groups["depth"]["weight_decay"] == 0.0
    assert groups["embeddings"]["weight_decay"] == 0.3
    assert groups["depth"]["betas"] == (0.9, 0.8)


@pytest.mark.parametrize("n_experts", [(), (3,)])
def test_gate_and_up_projection_in_one_parameter_are_two_matrices(n_experts):
    mlp = nn.Module()
    mlp.gate_up_proj = nn.Parameter(torch.ones(*n_experts, 6, 4))
    mlp.down_proj = nn.Parameter(torch.ones(*n_experts, 4, 3))
    parts = {group.param_names: group.n_parts for group in param_groups(mlp, OptimConfig())}
    assert parts == {("gate_up_proj",): 2, ("down_proj",): 1}
    mlp.down_proj = nn.Parameter(torch.ones(*n_experts, 4, 6))  # a gate that is not in there
    assert {group.n_parts for group in param_groups(mlp, OptimConfig())} == {1}


def test_no_optimizer_for_nothing():
    config = OptimConfig(optimizer="muon")
    bias = nn.Linear(2, 2)
    bias.weight.requires_grad = False
    assert [type(o) for o in build_optimizers(bias, config)] == [torch.optim.AdamW]
    matrix = nn.Linear(2, 2, bias=False)
    assert [type(o) for o in build_optimizers(matrix, config)] == [Muon]
    assert build_optimizers(nn.Identity(), config) == []


def test_a_step_moves_each_kind_by_its_learning_rate():
    """Without a gradient's sign AdamW's first step is lr; decay alone moves the rest."""
    model, config = Model(), OptimConfig(lr=0.1, weight_decay=0.5)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    model.residual.reader.query.grad = torch.ones(4)
    for optimizer in build_optimizers(model, config):
        optimizer.step()
    after = dict(model.named_parameters())
    for name in (
        "query.weight",
        "latents.query",
        "experts",
        "conv.weight",
        "embed.weight",
        "head.weight",
    ):
        torch.testing.assert_close(after[name], before[name] * 0.95)
    for name in ("decay", "scale", "query.bias", "norm.weight", "residual.reader.key_weight"):
        assert torch.equal(after[name], before[name])
    torch.testing.assert_close(after["residual.reader.query"], torch.full((4,), -0.1))


def test_a_step_of_a_scaled_group_is_its_share_of_the_learning_rate():
    model, config = Model(Tuned()), OptimConfig(lr=0.1, depth_lr_scale=2.0, weight_decay=0.5)
    reader = model.residual.reader
    reader.query.grad = torch.ones(4)
    reader.mix.grad = torch.zeros(2, 2)
    model.embed.weight.grad = torch.zeros(6, 4)
    before = model.embed.weight.detach().clone()
    for optimizer in build_optimizers(model, config):
        optimizer.step()
    torch.testing.assert_close(reader.query.detach(), torch.full((4,), -0.02))
    torch.testing.assert_close(reader.mix.detach(), torch.full((2, 2), 1 - 0.1 * 6.0 * 0.5))
    torch.testing.assert_close(model.embed.weight.detach(), before * 0.95)


def factors(n_steps, **settings):
    config = OptimConfig(**settings)
    return [lr_factor(config, step, n_steps) for step in range(n_steps + 2)]


def test_cosine_falls_from_the_warmup_to_the_minimum():
    warm = factors(12, warmup_steps=4, min_lr_fraction=0.2)
    assert warm[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warm[8] == pytest.approx(0.6)
    assert warm[6] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert warm[12:] == pytest.approx([0.2, 0.2])


def test_wsd_is_constant_then_falls_in_a_line():
    actual = factors(10, schedule="wsd", warmup_steps=2, decay_fraction=0.4, min_lr_fraction=0.0)
    assert actual == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0])


def test_wsd_falls_from_the_warmup_if_they_would_overlap():
    actual = factors(6, schedule="wsd", warmup_steps=4, decay_fraction=1.0, min_lr_fraction=0.0)
    assert actual == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.5, 0, 0])
    assert factors(3, schedule="wsd", warmup_steps=0, decay_fraction=0.0)[:3] == [1, 1, 1]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_short_runs(schedule):
    assert factors(1, schedule=schedule, warmup_steps=0) == pytest.approx([1.0, 0.1, 0.1])
    assert factors(1, schedule=schedule, warmup_steps=1) == pytest.approx([1.0, 0.1, 0.1])
    assert factors(2, schedule=schedule, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0]
    assert lr_factor(OptimConfig(schedule=schedule, warmup_steps=4), 4, 2) == pytest.approx(0.1)
    for step, n_steps in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match=f"step {step} of {n_steps}"):
            lr_factor(OptimConfig(), step, n_steps)


def test_set_lr_reaches_every_group():
    config = OptimConfig(optimizer="muon", lr=0.5, warmup_steps=4)
    optimizers = build_optimizers(Model(), config)
    assert set_lr(optimizers, config, 1, 100) == 0.25
    assert {group["lr"] for optimizer in optimizers for group in optimizer.param_groups} == {0.25}


def test_set_lr_gives_each_group_its_share():
    config = OptimConfig(lr=0.5, warmup_steps=4, depth_lr_scale=0.5)
    optimizers = build_optimizers(Model(Tuned()), config)
    for step, lr in ((1, 0.25), (3, 0.5)):
        assert set_lr(optimizers, config, step, 100) == lr
        groups = optimizers[0].param_groups
        shares = [group["lr"] / lr for group in groups if group["name"] == "depth"]
        assert shares == pytest.approx([0.05, 1.5])
        assert {group["lr"] for group in groups if group["name"] != "depth"} == {lr}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer", "sgd"),
        ("schedule", "linear"),
        ("lr", 0.0),
        ("lr", math.inf),
        ("eps", math.nan),
        ("weight_decay", -0.1),
        ("depth_weight_decay", -0.1),
        ("depth_lr_scale", 0.0),
        ("depth_lr_scale", math.inf),
        ("clip_norm", -1.0),
        ("warmup_steps", -1),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("muon_momentum", 1.5),
        ("decay_fraction", 1.1),
        ("min_lr_fraction", -0.1),
    ],
)
def test_wrong_values_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} {value!r} is not [^\n]*$"):
        OptimConfig(**{name: value})


def test_the_largest_step_of_a_logit_is_that_of_width_256():
    for dim in (8, 256, 576, 4096):
        lr = optim.query_lr(1e-3, dim)
        key_D = torch.ones(dim)  # of norm sqrt(dim), along the step
        assert lr * key_D.sum() == pytest.approx(1e-3 * min(dim, 256), rel=1e-6)
    for base_lr, dim in ((0.0, 8), (-1.0, 8), (math.inf, 8), (1e-3, 0)):
        with pytest.raises(ValueError, match="are positive, got"):
            optim.query_lr(base_lr, dim)
