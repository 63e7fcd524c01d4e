"""The depth mixing matrix of a model on a batch, and what it says in numbers."""

from typing import Any

import torch
from torch import Tensor

from attnres.residual.mixing import (
    Summary,
    mixing_matrix,
    off_diagonal_rank,
    recorded_outputs,
    summary,
)

__all__ = ["Summary", "mixing_matrix", "mixing_of_model", "off_diagonal_rank", "summary"]


@torch.no_grad()
def mixing_of_model(model: Any, tokens_BT: Tensor) -> Tensor:
    """M [L+1, L+1, B, T] of an `AttnResForCausalLM` on a batch, without dropout."""
    training = model.training
    model.eval()
    try:
        with recorded_outputs(model.residual) as outputs:
            model(input_ids=tokens_BT, use_cache=False)
    finally:
        model.train(training)
    return mixing_matrix(model.residual, outputs)
