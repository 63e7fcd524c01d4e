"""How sublayers are joined over depth: one file a method."""

from attnres.residual.ablated import Ablated, AblatedState
from attnres.residual.ablations import Ablations
from attnres.residual.attn_res import AttnRes, AttnResConfig, DepthState
from attnres.residual.base import Mix, Residual, ResidualConfig, Traffic, Tuning, Ways
from attnres.residual.centered import Centered, CenteredConfig, CenteredState
from attnres.residual.config import (
    RESIDUALS,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)
from attnres.residual.coordinates import with_coordinate
from attnres.residual.depth_reader import DepthReader
from attnres.residual.standard import Standard, StandardConfig
from attnres.residual.summed import Summed, SummedConfig
from attnres.residual.two_phase import TwoPhase, TwoPhaseConfig, TwoPhaseState

__all__ = [
    "RESIDUALS",
    "Ablated",
    "AblatedState",
    "Ablations",
    "AttnRes",
    "AttnResConfig",
    "Centered",
    "CenteredConfig",
    "CenteredState",
    "DepthReader",
    "DepthState",
    "Mix",
    "Residual",
    "ResidualConfig",
    "Standard",
    "StandardConfig",
    "Summed",
    "SummedConfig",
    "Traffic",
    "Tuning",
    "TwoPhase",
    "TwoPhaseConfig",
    "TwoPhaseState",
    "Ways",
    "format_residual",
    "parse_residual",
    "residual_from_json",
    "residual_to_json",
    "with_coordinate",
]
