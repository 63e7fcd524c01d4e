"""The norms that follow the reads of a model: only through their epsilon does a scale matter.

For RMSNorm and LayerNorm, norm(h / n) with eps / n^2 is norm(h) with eps.
"""

from typing import Any, cast

from torch import nn

from attnres.residual import AttnRes, Residual, TwoPhase

INPUT_NORMS = ("input_layernorm", "post_attention_layernorm")  # of the sublayers of a layer
EPS_NAMES = ("variance_epsilon", "eps")  # of RMSNorm in transformers, of torch's norms


def consumer_norms(model: Any) -> list[nn.Module]:
    """The norm that follows each read of a base model (without its head), the final norm last.

    Raises:
        ValueError: a family in which a sublayer reads the stream without a norm, as in OLMo 2.
    """
    found: list[nn.Module] = []
    for layer in cast(nn.ModuleList, model.layers):
        for name in INPUT_NORMS:
            norm = getattr(layer, name, None)
            if norm is None:
                raise ValueError(
                    f"{model.config.model_type!r} has no {name}: a sublayer that reads the stream "
                    "without a norm sees its scale, so the mean form is another function; take "
                    "'centered' or 'sum'"
                )
            found.append(norm)
    return [*found, cast(nn.Module, model.norm)]


def norm_eps(norm: nn.Module) -> float:
    return float(getattr(norm, _eps_name(norm)))


def scale_norm_eps(residual: Residual[Any], model: Any) -> None:
    """Divide the epsilon of each norm by n^2, n sources of the read before it; in place."""
    if not isinstance(residual, AttnRes | TwoPhase):
        kind = type(residual).__name__
        raise ValueError(f"scaled_norm_eps is for reads of a mean, {kind} reads none")
    for depth, norm in enumerate(consumer_norms(model)):
        n_sources = residual.layout.n_sources(depth)
        setattr(norm, _eps_name(norm), norm_eps(norm) / n_sources**2)


def _eps_name(norm: nn.Module) -> str:
    for name in EPS_NAMES:
        if hasattr(norm, name):
            return name
    raise ValueError(f"{type(norm).__name__} has no epsilon that is known: {', '.join(EPS_NAMES)}")
