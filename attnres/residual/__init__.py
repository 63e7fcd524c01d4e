"""How sublayers are joined over depth: one file a method."""

from attnres.residual.ablated import Ablated, AblatedState
from attnres.residual.ablations import Ablations
from attnres.residual.around_stream import CenteredState
from attnres.residual.attn_res import AttnRes, AttnResConfig, DepthState
from attnres.residual.base import Mix, Parts, Residual, ResidualConfig, Traffic, Tuning, Ways
from attnres.residual.centered import Centered, CenteredConfig
from attnres.residual.config import (
    RESIDUALS,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)
from attnres.residual.coordinates import with_coordinate
from attnres.residual.delta import Delta, DeltaConfig
from attnres.residual.delta_rule import DeltaRule, DeltaRuleConfig
from attnres.residual.denseformer import DenseFormer, DenseFormerConfig
from attnres.residual.depth_reader import DepthReader
from attnres.residual.grn import Grn, GrnConfig
from attnres.residual.highway import Highway, HighwayConfig
from attnres.residual.hyper import HyperConnections, HyperConnectionsConfig
from attnres.residual.laurel import Laurel, LaurelConfig, LaurelState
from attnres.residual.layer_scale import LayerScale, LayerScaleConfig, ReZero, ReZeroConfig
from attnres.residual.mhc import ManifoldHyperConnections, ManifoldHyperConnectionsConfig
from attnres.residual.muddformer import MuddFormer, MuddFormerConfig
from attnres.residual.post_norm import DeepNormConfig, KeelConfig, PostNorm
from attnres.residual.reading import ReadsQuickly
from attnres.residual.reading_state import ReadingState
from attnres.residual.scaled_embedding import ScaledEmbedding, ScaledEmbeddingConfig
from attnres.residual.standard import Standard, StandardConfig
from attnres.residual.summed import Summed, SummedConfig
from attnres.residual.two_phase import TwoPhase, TwoPhaseConfig, TwoPhaseState
from attnres.residual.window import Window, WindowConfig

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
    "DeepNormConfig",
    "Delta",
    "DeltaConfig",
    "DeltaRule",
    "DeltaRuleConfig",
    "DenseFormer",
    "DenseFormerConfig",
    "DepthReader",
    "DepthState",
    "Grn",
    "GrnConfig",
    "Highway",
    "HighwayConfig",
    "HyperConnections",
    "HyperConnectionsConfig",
    "KeelConfig",
    "Laurel",
    "LaurelConfig",
    "LaurelState",
    "LayerScale",
    "LayerScaleConfig",
    "ManifoldHyperConnections",
    "ManifoldHyperConnectionsConfig",
    "Mix",
    "MuddFormer",
    "MuddFormerConfig",
    "Parts",
    "PostNorm",
    "ReZero",
    "ReZeroConfig",
    "ReadingState",
    "ReadsQuickly",
    "Residual",
    "ResidualConfig",
    "ScaledEmbedding",
    "ScaledEmbeddingConfig",
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
    "Window",
    "WindowConfig",
    "format_residual",
    "parse_residual",
    "residual_from_json",
    "residual_to_json",
    "with_coordinate",
]
