"""Experts are used alike by a bias that moves once a step and never weighs an output."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from attnres.train.data import DataConfig
from attnres.train.kimi import kimi_laptop
from attnres.train.loop import train
from attnres.train.moe import ExpertBalance


class Router(torch.nn.Module):
    """Chooses what it is given."""

    def __init__(self):
        super().__init__()
        self.e_score_correction_bias = torch.nn.Buffer(torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, chosen):
        return self.weight * torch.ones(chosen.shape), chosen


def test_a_bias_moves_against_the_load_and_its_mean_does_not_move():
    router = Router()
    balance = ExpertBalance(router, rate=0.1)
    router(torch.tensor([[0, 1], [0, 1], [0, 2]]))
    router(torch.tensor([[0, 1]]))  # a second batch of the same step
    figures = balance.step()
    # counts 4, 3, 1, 0 and a mean of 2: signs -1, -1, 1, 1
    assert router.e_score_correction_bias.tolist() == pytest.approx([-0.1, -0.1, 0.1, 0.1])
    assert figures == {"expert_load_most": 2, "expert_load_most_mean": 2, "n_idle_experts": 1}
    router(torch.tensor([[3, 3], [3, 2]]))
    balance.step()  # counts 0, 0, 1, 3 and a mean of 1: signs 1, 1, 0, -1 and their mean 1/4
    expected = [-0.025, -0.025, 0.075, -0.025]
    assert router.e_score_correction_bias.tolist() == pytest.approx(expected, abs=1e-7)


def test_what_does_not_train_does_not_count():
    router = Router()
    balance = ExpertBalance(router, rate=0.1)
    router(torch.tensor([[0, 1, 2, 3]]))
    router.eval()(torch.tensor([[0, 0]]))
    with torch.no_grad():
        router.train()(torch.tensor([[0, 0]]))
    assert balance.step()["expert_load_most"] == 1
    assert not router.e_score_correction_bias.any()


def test_a_model_without_experts_has_no_figures():
    assert ExpertBalance(torch.nn.Linear(2, 2), rate=0.1).step() == {}


SMALL = {
    "kimi_linear": {"num_local_experts": 4, "layer_types": ["full_attention"] * 2},
    "deepseek_v3": {"n_routed_experts": 4},
}
WIDTHS = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 48, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "kv_lora_rank": 16, "q_lora_rank": None,
          "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_group": 1,
          "topk_group": 1, "first_k_dense_replace": 1, "pad_token_id": 0}  # fmt: skip


def plain(family):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **WIDTHS, **SMALL[family]))


def router_of(model):
    return next(m for m in model.modules() if hasattr(m, "e_score_correction_bias"))


@pytest.mark.parametrize("family", SMALL)
def test_a_bias_chooses_and_never_weighs(family):
    router, h_TD = router_of(plain(family)), torch.randn(50, 32)
    router.e_score_correction_bias += torch.tensor([5.0, 0.0, 5.0, 0.0])
    logits, weights, chosen = router(h_TD)
    assert set(chosen.flatten().tolist()) == {0, 2}
    expected = logits.sigmoid().gather(1, chosen)
    expected = router.routed_scaling_factor * expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected)


def test_experts_in_one_product_are_experts_one_by_one():
    """The default of transformers is a grouped product; an expert without tokens gets zeros."""
    model, found = plain("kimi_linear"), {}
    router_of(model).e_score_correction_bias += torch.tensor([9.0, 9.0, -9.0, -9.0])
    tokens_BT = torch.arange(3, 33).view(2, 15)
    assert model.config._experts_implementation == "grouped_mm"
    for implementation in ("grouped_mm", "eager"):
        model.set_experts_implementation(implementation)
        model.zero_grad()
        model(tokens_BT, labels=tokens_BT).loss.backward()
        found[implementation] = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name, expected in found["eager"].items():
        error = (found["grouped_mm"][name] - expected).abs().max()
        assert error <= 1e-5 * expected.abs().max(), name
    down = found["grouped_mm"]["model.layers.1.mlp.experts.down_proj"]
    assert down[:2].any()
    assert not down[2:].any()


def loads_of_a_run(path, text, rate, checkpoints=False):
    """Largest load of an expert by step, mean over layers, and the biases at the end."""
    base = kimi_laptop()
    others = {**base.model.others, "num_experts": 8, "num_experts_per_token": 2}
    recipe = replace(
        base,
        data=DataConfig(path=str(text), vocab_size=300),
        model=replace(base.model, dim=16, n_layers=3, mlp_dim=16, others=others),
        optim=replace(base.optim, expert_bias_rate=rate),
        n_steps=6, batch_size=4, seq_len=32, log_every=1, validate_every=6, probe_every=6,
        save_every=6, checkpoint_gradients=checkpoints,
    )  # fmt: skip
    train(recipe, path)
    events = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    weights = load_file(path / "model" / "model.safetensors")
    biases = [value for name, value in weights.items() if "e_score_correction_bias" in name]
    return [x["expert_load_most_mean"] for x in events if "expert_load_most" in x], biases


def test_a_run_moves_biases_and_says_the_load(tmp_path, text):
    free, still = loads_of_a_run(tmp_path / "free", text, 0.0)
    loads, moved = loads_of_a_run(tmp_path / "moved", text, 0.01)
    assert len(free) == len(loads) == 6
    assert min(free + loads) >= 1
    assert not torch.stack(still).any()
    assert torch.stack(moved).any(dim=1).all()
    again, same = loads_of_a_run(tmp_path / "again", text, 0.01, checkpoints=True)
    assert again == loads
    assert torch.equal(torch.stack(same), torch.stack(moved))


def test_biases_spread_a_load_that_is_uneven():
    router, generator = router_of(plain("kimi_linear")), torch.Generator().manual_seed(0)
    balance = ExpertBalance(router, rate=0.01)
    with torch.no_grad():
        router.weight *= 20  # so that scores differ as those of trained experts do
    loads = []
    for _ in range(200):
        router(torch.randn(256, 32, generator=generator) + 1)
        loads.append(balance.step()["expert_load_most"])
    assert loads[0] > 1.6
    assert sum(loads[-20:]) / 20 < 1.25
