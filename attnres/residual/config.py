"""Residual methods by name, for JSON and the command line.

A method of your own joins by its config: `RESIDUALS["mine"] = MyConfig`.
"""

from dataclasses import asdict
from typing import Any, cast

from attnres.fields import build, shown
from attnres.layout import UNITS_IN_WORDS
from attnres.residual.attn_res import AttnResConfig
from attnres.residual.base import ResidualConfig
from attnres.residual.centered import CenteredConfig
from attnres.residual.delta import DeltaConfig
from attnres.residual.delta_rule import DeltaRuleConfig
from attnres.residual.denseformer import DenseFormerConfig
from attnres.residual.grn import GrnConfig
from attnres.residual.highway import HighwayConfig
from attnres.residual.hyper import HyperConnectionsConfig
from attnres.residual.laurel import LaurelConfig
from attnres.residual.layer_scale import LayerScaleConfig, ReZeroConfig
from attnres.residual.mhc import ManifoldHyperConnectionsConfig
from attnres.residual.muddformer import MuddFormerConfig
from attnres.residual.post_norm import DeepNormConfig, KeelConfig
from attnres.residual.scaled_embedding import ScaledEmbeddingConfig
from attnres.residual.standard import StandardConfig
from attnres.residual.summed import SummedConfig
from attnres.residual.two_phase import TwoPhaseConfig
from attnres.residual.window import WindowConfig

RESIDUALS: dict[str, Any] = {  # each a dataclass and a `ResidualConfig`
    "standard": StandardConfig,
    "attn_res": AttnResConfig,
    "two_phase": TwoPhaseConfig,
    "sum": SummedConfig,
    "centered": CenteredConfig,
    "window": WindowConfig,
    "delta": DeltaConfig,
    "denseformer": DenseFormerConfig,
    "muddformer": MuddFormerConfig,
    "grn": GrnConfig,
    "scaled_embedding": ScaledEmbeddingConfig,
    "highway": HighwayConfig,
    "rezero": ReZeroConfig,
    "layer_scale": LayerScaleConfig,
    "deep_norm": DeepNormConfig,
    "keel": KeelConfig,
    "laurel": LaurelConfig,
    "hyper": HyperConnectionsConfig,
    "mhc": ManifoldHyperConnectionsConfig,
    "delta_rule": DeltaRuleConfig,
}


def residual_to_json(config: ResidualConfig) -> dict[str, Any]:
    """{"method": name, ...} with the settings that are set."""
    if type(config) not in RESIDUALS.values():
        raise ValueError(f"no config of a residual method: {config!r}")
    (name,) = (name for name, kind in RESIDUALS.items() if type(config) is kind)
    given = asdict(cast(Any, config)).items()
    settings = {key: value for key, value in given if value is not None}
    return {"method": name, **settings}


def residual_from_json(data: dict[str, Any]) -> ResidualConfig:
    """The config that `residual_to_json` wrote; ValueError for an unknown method or setting."""
    if not isinstance(data, dict):
        raise ValueError(f"a residual method is an object with a method, got {shown(data)}")
    settings = dict(data)
    name = settings.pop("method", None)
    if not isinstance(name, str) or name not in RESIDUALS:
        known = ", ".join(RESIDUALS)
        raise ValueError(f"no residual method {shown(name)}; there are: {known}")
    if "block_size" in settings:
        raise ValueError(f"block_size has no unit; give {UNITS_IN_WORDS}")
    return build(RESIDUALS[name], settings, f"residual method {name!r}")


def parse_residual(text: str) -> ResidualConfig:
    """`standard`, `attn_res` (Full) or `attn_res:n_blocks=8` (settings separated by commas)."""
    name, _, settings = text.partition(":")
    data: dict[str, Any] = {"method": name}
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not (equals and value):
            raise ValueError(f"a setting reads name=value, got {setting!r} in {text!r}")
        if key in data:
            raise ValueError(f"{key!r} is given twice in {text!r}")
        data[key] = _value(value)
    return residual_from_json(data)


def format_residual(config: ResidualConfig) -> str:
    """The text that `parse_residual` reads."""
    data = residual_to_json(config)
    name = data.pop("method")
    settings = ",".join(f"{key}={value}" for key, value in data.items())
    return f"{name}:{settings}" if settings else name


def _value(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
