"""Experts are counted over all processes before a bias moves."""

import pytest
import torch
from processes import run_processes

from attnres.train.moe import ExpertBalance


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
