"""The probe's figures equal what hooks and autograd find, and it leaves nothing behind."""

import contextlib
import math
from typing import Any

import pytest
import torch
from tiny_runs import RESIDUALS
from torch import nn

from attnres.analysis.mixing import Summary, mixing_of_model, summary
from attnres.residual import Residual, Standard
from attnres.train import probe
from attnres.train.recipe import ModelConfig

TOKENS_BT = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))
N_SOURCES = {"block": [1, 2, 2, 3, 3], "full": [1, 2, 3, 4, 5]}
SHADOWS = ("start", "read", "write", "finish")
MIXING = ("mixing", *(f"mixing_{name}" for name in Summary._fields))


def build(residual="block", trained=True) -> Any:
    torch.manual_seed(0)
    config = ModelConfig(dim=32, n_layers=2, n_heads=2, n_kv_heads=2, mlp_dim=64, init_std=0.3,
                         residual=RESIDUALS[residual])  # fmt: skip
    model = config.build(vocab_size=61, seq_len=16)
    if trained:
        for name, parameter in model.residual.named_parameters():
            nn.init.normal_(parameter, std=0.5 if name.endswith("query") else 1.0)
    return model.train()


def hooked(model):
    """Outputs of all sublayers, found by hooks, with their gradients kept."""
    outputs = []

    def keep(module, arguments, out):
        out = out[0] if isinstance(out, tuple) else out
        out.retain_grad()
        outputs.append(out)

    hooks = [part.register_forward_hook(keep)
             for layer in model.model.layers for part in (layer.self_attn, layer.mlp)]  # fmt: skip
    model.eval()
    loss = model(input_ids=TOKENS_BT, labels=TOKENS_BT, use_cache=False).loss
    loss.backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    model.train()
    return outputs


def rms(x):
    return x.detach().pow(2).mean().sqrt().item()


def streams(residual, outputs, embed_BTD):
    """The running sum after each sublayer: from the embedding on, or from the block's start."""
    sizes = {"standard": [99], "block": [2, 2], "full": [1] * 4}[residual]
    starts = {sum(sizes[:i]) for i in range(len(sizes))}
    total, found = embed_BTD, []
    for depth, out in enumerate(outputs):
        begins = residual != "standard" and depth in starts
        total = out if begins else total + out
        found.append(total)
    return found


@pytest.mark.parametrize("residual", RESIDUALS)
def test_figures_equal_those_of_hooks_and_autograd(residual):
    model = build(residual)
    outputs = hooked(model)
    figures = probe.measure(model, TOKENS_BT)
    assert figures["output_rms"] == pytest.approx([rms(out) for out in outputs], rel=1e-5)
    norms = [out.grad.norm().item() for out in outputs]
    assert figures["grad_norm"] == pytest.approx(norms, rel=1e-5)
    sums = streams(residual, outputs, model.model.embed_tokens(TOKENS_BT))
    assert figures["stream_rms"] == pytest.approx([rms(total) for total in sums], rel=1e-5)


@pytest.mark.parametrize("residual", ["block", "full"])
def test_weights_are_rows_of_their_sources_that_sum_to_one(residual):
    figures = probe.measure(build(residual), TOKENS_BT)
    assert [len(row) for row in figures["weights"]] == N_SOURCES[residual]
    assert [sum(row) for row in figures["weights"]] == pytest.approx([1.0] * 5, abs=1e-6)
    for row, entropy, peak in zip(
        figures["weights"], figures["weights_entropy"], figures["weights_max"], strict=True
    ):
        assert -1e-6 <= entropy <= math.log(len(row)) + 1e-6
        assert max(row) - 1e-6 <= peak <= 1 + 1e-6
    assert figures["weights_entropy"][-1] < math.log(len(figures["weights"][-1])) - 1e-3


@pytest.mark.parametrize("residual", ["block", "full"])
def test_weights_are_means_over_tokens_of_what_each_reader_uses(residual):
    model = build(residual)
    found = []
    for reader in model.residual.readers:

        def keep(module, arguments):
            found.append(module.weights(arguments[0]).detach())

        reader.register_forward_pre_hook(keep)
    figures = probe.measure(model, TOKENS_BT)
    for row, entropy, alpha_SBT in zip(
        figures["weights"], figures["weights_entropy"], found, strict=True
    ):
        assert row == pytest.approx(alpha_SBT.mean((1, 2)).tolist(), abs=1e-6)
        exact = -(alpha_SBT * alpha_SBT.log()).sum(0).mean().item()
        assert entropy == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("residual", ["block", "full"])
def test_readers_at_their_start_weigh_all_sources_alike(residual):
    figures = probe.measure(build(residual, trained=False), TOKENS_BT)
    entropies = [math.log(n) for n in N_SOURCES[residual]]
    assert figures["weights_entropy"] == pytest.approx(entropies, abs=1e-6)
    assert figures["weights_max"] == pytest.approx([1 / n for n in N_SOURCES[residual]])


def test_a_method_without_depth_weights_has_none():
    figures = probe.measure(build("standard"), TOKENS_BT)
    assert [figures[key] for key in ("weights", "weights_entropy", "weights_max")] == [None] * 3


@pytest.mark.parametrize("residual", RESIDUALS)
def test_mixing_is_the_mean_over_tokens_with_its_summary(residual):
    model = build(residual)
    figures, expected = probe.measure(model, TOKENS_BT), mixing_of_model(model, TOKENS_BT)
    assert torch.tensor(figures["mixing"]).shape == (5, 5)
    for row, mean_L in zip(figures["mixing"], expected.mean((2, 3)).tolist(), strict=True):
        assert row == pytest.approx(mean_L, abs=2e-6)
    for name, value in summary(expected)._asdict().items():
        assert figures[f"mixing_{name}"] == pytest.approx(value, abs=1e-5)


def test_mixing_takes_tokens_evenly_where_there_are_many(monkeypatch):
    monkeypatch.setattr(probe, "MIXING_TOKENS", 6)  # of 18: every third
    model = build("full")
    mean_RL = mixing_of_model(model, TOKENS_BT).flatten(2)[..., ::3].mean(dim=-1)
    figures = probe.measure(model, TOKENS_BT)
    assert figures["mixing"][-1] == pytest.approx(mean_RL[-1].tolist(), abs=2e-6)


def test_a_long_model_or_one_that_is_not_finite_has_no_mixing(monkeypatch):
    monkeypatch.setattr(probe, "MIXING_SUBLAYERS", 3)
    assert [probe.measure(build(), TOKENS_BT)[key] for key in MIXING] == [None] * len(MIXING)
    monkeypatch.undo()
    model = build()
    nn.init.constant_(model.residual.readers[3].query, math.nan)
    figures = probe.measure(model, TOKENS_BT)
    assert [figures[key] for key in MIXING] == [None] * len(MIXING)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_nothing_is_left_behind(training, outcome):
    model = build().train(training)
    own = {name: getattr(model.residual, name).__func__ for name in SHADOWS}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rng_state = torch.get_rng_state()
    hook, ending = None, contextlib.nullcontext()
    if outcome == "failure":
        hook = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
        ending = pytest.raises(ZeroDivisionError)
    with ending:
        probe.measure(model, TOKENS_BT)
    if hook:
        hook.remove()
    assert all(module.training == training for module in model.modules())
    assert {name: getattr(model.residual, name).__func__ for name in SHADOWS} == own
    assert not set(SHADOWS) & set(vars(model.residual))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), rng_state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_gradients_that_are_there_stay():
    model = build()
    model(input_ids=TOKENS_BT, labels=TOKENS_BT).loss.backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    probe.measure(model, TOKENS_BT)
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_it_measures_inside_no_grad():
    with torch.no_grad():
        assert len(probe.measure(build(), TOKENS_BT)["grad_norm"]) == 4


@pytest.mark.parametrize("residual", RESIDUALS)
def test_autocast_changes_figures_by_rounding_alone(residual):
    plain = probe.measure(build(residual), TOKENS_BT)
    with torch.autocast("cpu", torch.bfloat16):
        low = probe.measure(build(residual), TOKENS_BT)
    for key in ("output_rms", "stream_rms", "grad_norm"):
        assert low[key] != plain[key]
        assert low[key] == pytest.approx(plain[key], rel=0.05)
    for row in low["weights"] or []:
        assert sum(row) == pytest.approx(1.0, abs=1e-6)  # the weights themselves are float32


def test_gradient_checkpointing_changes_no_figure():
    plain = probe.measure(build(), TOKENS_BT)
    model = build()
    model.activation_checkpointing_enable()
    assert probe.measure(model, TOKENS_BT) == plain


@pytest.mark.parametrize("trained", ["lm_head", "layers.1.mlp", "nothing"])
def test_a_model_that_is_frozen_from_its_start_on_is_refused(trained):
    model = build("standard")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    with pytest.raises(ValueError, match="no gradient at depth 0: all parameters up to it"):
        probe.measure(model, TOKENS_BT)


class NoSum(Residual):
    """A method with nothing for analysis."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.n_sublayers = inner, inner.n_sublayers

    def start(self, embed_BTD):
        return self.inner.start(embed_BTD)

    def read(self, state, depth):
        return self.inner.read(state, depth)

    def write(self, state, depth, out_BTD):
        return self.inner.write(state, depth, out_BTD)

    def finish(self, state):
        return self.inner.finish(state)

    def reset_parameters(self):
        pass


def test_a_method_of_the_four_required_functions_alone_is_measured():
    model, plain = build("standard"), build("standard")
    expected = probe.measure(plain, TOKENS_BT)
    model.residual = NoSum(Standard(4))
    for part in (*model.model.layers, model.model.norm):
        part.residual_of = (model.residual,)
    figures = probe.measure(model, TOKENS_BT)
    assert figures == expected | dict.fromkeys(("stream_rms", *MIXING))


def test_zero_queries_are_called_untrained():
    assert probe.measure(build(trained=False), TOKENS_BT)["untrained"] is True
    assert probe.measure(build(), TOKENS_BT)["untrained"] is False
    assert probe.measure(build("standard"), TOKENS_BT)["untrained"] is False
