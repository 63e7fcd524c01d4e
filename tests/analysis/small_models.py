"""A model small enough to be measured source by source, whose readers choose."""

from typing import Any

import torch
from torch import nn

from attnres.residual import ResidualConfig
from attnres.train.recipe import ModelConfig


def build(residual: ResidualConfig) -> Any:
    torch.manual_seed(0)
    config = ModelConfig(dim=32, n_layers=3, n_heads=2, n_kv_heads=2, mlp_dim=48, init_std=0.3,
                         residual=residual)  # fmt: skip
    model = config.build(vocab_size=61, seq_len=16)
    for name, parameter in model.residual.named_parameters():
        if name.endswith("query"):
            nn.init.normal_(parameter, std=0.3)
    return model.eval()
