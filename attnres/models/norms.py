"""The norms that follow the reads of a model: only through their epsilon does a scale matter.

For RMSNorm and LayerNorm, norm(h / n) with eps / n^2 is norm(h) with eps.
"""

from typing import Any

from torch import nn

from attnres.models.families import family_of
from attnres.residual import AttnRes, Residual, TwoPhase


def consumer_norms(model: Any) -> list[tuple[nn.Module, ...]]:
    """The norms that follow each read of a base model (without its head), the final norm last.

    Raises:
        ValueError: a family in which a sublayer reads the stream without a norm, as in OLMo 2.
    """
    family = family_of(model.config)
    if not family.scale_free:
        raise ValueError(
            f"in {model.config.model_type!r} a sublayer reads the stream without a norm and sees "
            "its scale, so the mean form is another function; take 'centered' or 'sum'"
        )
    return family.norms(model)


def eps_name(model: Any) -> str:
    """What these norms call their epsilon; ValueError where it is fixed, as in OLMo."""
    name = family_of(model.config).eps
    if name is None:
        raise ValueError(
            f"the norms of {model.config.model_type!r} have a fixed epsilon, so a mean cannot be "
            "made up for; take 'centered' or 'sum'"
        )
    return name


def scale_norm_eps(residual: Residual[Any], model: Any) -> None:
    """Divide the epsilon of each norm by n^2, n sources of the read before it; in place."""
    if not isinstance(residual, AttnRes | TwoPhase):
        kind = type(residual).__name__
        raise ValueError(f"scaled_norm_eps is for reads of a mean, {kind} reads none")
    name = eps_name(model)
    for depth, norms in enumerate(consumer_norms(model)):
        n_sources = residual.layout.n_sources(depth)
        for norm in norms:
            setattr(norm, name, getattr(norm, name) / n_sources**2)
