"""Deterministic algorithms also fill uninitialised memory with NaN."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
