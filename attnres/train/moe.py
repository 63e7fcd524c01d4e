"""Experts that are used alike, without a loss for it: a bias on the choice of each router.

    bias += rate (sign(mean count - count) - mean of these signs)       arXiv:2502.16982, appendix C

Once an optimiser step, over all tokens of the step on all processes. The bias decides which experts
a token goes to and never how much each weighs: that is the router's own, in transformers.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn

from attnres.distributed import world

BIAS = "e_score_correction_bias"  # a buffer of the router, in the families that have one


class ExpertBalance:
    """Counts what the routers of a model choose while it trains, and moves their biases.

    A layer that is computed again for the backward counts twice: no sign and no share changes.

    Where a pipeline cuts the model, a process counts and moves the routers of its own stage; the
    figures are those of all stages.

    Args:
        rate: step of a bias; 0 counts and moves nothing.
        group: processes that hold the same routers; None is all there are.
        stages: processes that hold the routers of the whole model together; None is this one alone.
    """

    def __init__(self, model: nn.Module, rate: float, group: Any = None, stages: Any = None):
        self.rate, self.group, self.stages = rate, group, stages
        self.routers = [each for each in model.modules() if getattr(each, BIAS, None) is not None]
        self.counts = [torch.zeros_like(getattr(router, BIAS)) for router in self.routers]
        for router, count_E in zip(self.routers, self.counts, strict=True):
            router.register_forward_hook(_count_into(count_E))
        self.n_routers = sum(self._of_all_stages(len(self.routers)))

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """Move every bias and start to count anew.

        Returns:
            Load of an expert over the even share: `expert_load_most`, the largest of all layers,
            and `expert_load_most_mean`, the mean over layers of the largest; `n_idle_experts`, of
            all layers, got no token. Nothing for a model without experts.
        """
        if not self.n_routers:
            return {}
        if self.routers and distributed.is_available() and distributed.is_initialized():
            self._add_up()
        for router, count_E in zip(self.routers, self.counts, strict=True):
            sign_E = (count_E.mean() - count_E).sign()
            getattr(router, BIAS).add_(sign_E - sign_E.mean(), alpha=self.rate)
        most = [(count_E.max() / count_E.mean()).item() for count_E in self.counts]
        n_idle = sum(int((count_E == 0).sum()) for count_E in self.counts)
        for count_E in self.counts:
            count_E.zero_()
        return _figures(self._of_all_stages((most, n_idle)))

    def _of_all_stages(self, value: Any) -> list[Any]:
        return [value] if self.stages is None else world.gathered(value, self.stages)

    def _add_up(self) -> None:
        """All routers in one message."""
        together = torch.cat(self.counts)
        distributed.all_reduce(together, group=self.group)
        sizes = [len(count_E) for count_E in self.counts]
        for count_E, total_E in zip(self.counts, together.split(sizes), strict=True):
            count_E.copy_(total_E)


def _figures(by_stage: list[tuple[list[float], int]]) -> dict[str, float]:
    most = [load for loads, _ in by_stage for load in loads]
    return {
        "expert_load_most": max(most),
        "expert_load_most_mean": sum(most) / len(most),
        "n_idle_experts": float(sum(n_idle for _, n_idle in by_stage)),
    }


def _count_into(count_E: Tensor) -> Any:
    def hook(router: nn.Module, inputs: Any, outputs: Any) -> None:
        if router.training and torch.is_grad_enabled():
            # the chosen experts are the one output that is no floating-point number
            chosen = next(x for x in outputs if not x.is_floating_point())
            found_E = torch.zeros_like(count_E)
            ones = torch.ones_like(chosen, dtype=found_E.dtype)
            count_E.add_(found_E.scatter_add(0, chosen.flatten(), ones.flatten()))

    return hook
