"""How sublayers are joined over depth: one file a method."""

from attnres.residual.attn_res import AttnRes, AttnResConfig, DepthReader, DepthState
from attnres.residual.base import Residual
from attnres.residual.config import (
    RESIDUALS,
    ResidualConfig,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)
from attnres.residual.standard import Standard, StandardConfig

__all__ = [
    "RESIDUALS",
    "AttnRes",
    "AttnResConfig",
    "DepthReader",
    "DepthState",
    "Residual",
    "ResidualConfig",
    "Standard",
    "StandardConfig",
    "format_residual",
    "parse_residual",
    "residual_from_json",
    "residual_to_json",
]
