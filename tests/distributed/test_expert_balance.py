"""Experts are counted over all processes before a bias moves."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import run_processes
from test_data_parallel import assert_close_runs
from tiny_runs import recipe, rows

from attnres.residual import AttnResConfig
from attnres.train.kimi import kimi_model
from attnres.train.loop import train
from attnres.train.moe import ExpertBalance
from attnres.train.recipe import Recipe


class Router(torch.nn.Module):
    """Chooses what it is given."""

    def __init__(self):
        super().__init__()
        self.e_score_correction_bias = torch.nn.Buffer(torch.zeros(4))

    def forward(self, chosen):
        return torch.ones(chosen.shape), chosen


def _step_of_a_rank(rank):
    """Each process has two tokens of four, and of the second router one of two."""
    router, other = Router(), Router()
    balance = ExpertBalance(torch.nn.ModuleList([router, other]), rate=0.1)
    router(torch.tensor([[0, 1], [0, 2 + rank]]))
    other(torch.tensor([[rank, 2]]))
    return balance.step(), [each.e_score_correction_bias.tolist() for each in (router, other)]


@pytest.mark.dist
def test_all_processes_count_together():
    for figures, (first, second) in run_processes(_step_of_a_rank, 2, timeout_s=60):
        # counts 4, 2, 1, 1 of the first and 1, 1, 2, 0 of the second router
        assert first == pytest.approx([-0.125, -0.025, 0.075, 0.075])
        assert second == pytest.approx([0, 0, -0.1, 0.1])
        assert figures == {"expert_load_most": 2, "expert_load_most_mean": 2, "n_idle_experts": 1}


def _with_experts(text: Path) -> Recipe:
    """Two layers of Kimi Linear, the first dense, the second with experts."""
    own = recipe(text, batch_size=4, n_accumulations=2, n_steps=3)
    model = kimi_model(
        **{"dim": 32, "n_layers": 2, "n_heads": 2, "mlp_dim": 48, "head_dim": 8, "latent_dim": 16},
        **{"expert_dim": 24, "n_experts": 4, "n_active_experts": 2},
        residual=AttnResConfig(n_blocks=2),
    )
    return replace(own, model=model)


def _train_each(rank: int, recipes: dict[str, Recipe], folder: Path) -> None:
    for name, own in recipes.items():
        train(own, folder / name)


@pytest.mark.dist
@pytest.mark.slow
def test_runs_with_experts_are_those_of_one_process(text, tmp_path):
    own = _with_experts(text)
    recipes = {"sharded": own, "mesh": replace(own, pipeline=2)}
    train(own, tmp_path / "one")
    assert "expert_load_most" in rows(tmp_path / "one", "train")[0]
    run_processes(_train_each, 4, recipes, tmp_path, timeout_s=600)
    for name in recipes:
        assert_close_runs(tmp_path / name, tmp_path / "one", has_probes=False)
