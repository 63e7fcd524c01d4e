"""What every method claims of its start is what it reads there."""

import pytest
import torch
from depth_methods import CONFIGS, run_alone
from torch import Tensor

from attnres.residual import format_residual

DIM, N_SUBLAYERS = 6, 8


@pytest.mark.parametrize("config", CONFIGS, ids=format_residual)
def test_a_method_starts_as_it_claims(config):
    residual = config.build(DIM, N_SUBLAYERS).double()
    reads, outputs = run_alone(residual, torch.randn(2, 3, DIM, dtype=torch.float64))
    sums = torch.stack(outputs).cumsum(dim=0)
    factors = [_factor(read_BTD, sum_BTD) for read_BTD, sum_BTD in zip(reads, sums, strict=True)]
    assert _start(factors) == residual.starts_as


def _factor(read_BTD: Tensor, sum_BTD: Tensor) -> float | None:
    """What the sum is multiplied by, or None where the read is no multiple of it."""
    factor = (read_BTD * sum_BTD).sum() / sum_BTD.square().sum()
    error = (read_BTD - factor * sum_BTD).norm() / read_BTD.norm()
    return factor.item() if error < 1e-12 and factor > 0 else None


def _start(factors: list[float | None]) -> str:
    if any(factor is None for factor in factors):
        return "other"
    return "standard" if factors == pytest.approx([1] * len(factors), abs=1e-12) else "multiple"
