"""A training step of a whole model gives the same bits twice."""

from collections.abc import Iterator

import pytest
import torch
from tiny_models import FAMILIES, assert_same, build, gradients, tokens


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def step(family: str, residual: str, seed: int = 3) -> dict[str, torch.Tensor]:
    """Loss, gradients and the weights that the optimiser leaves."""
    model = build(family, residual, attention_dropout=0.3).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(seed)
    loss = model(tokens(), labels=tokens()).loss
    loss.backward()
    optimizer.step()
    found = {f"gradient of {name}": gradient for name, gradient in gradients(model).items()}
    return {"loss": loss.detach(), **found, **model.state_dict()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", ["standard", "full", "block"])
def test_a_training_step_twice_gives_the_same_bits(family, residual):
    assert_same(step(family, residual), step(family, residual))


def test_another_seed_gives_other_bits():
    assert not torch.equal(step("llama", "full")["loss"], step("llama", "full", seed=4)["loss"])
