"""The public ops: check, choose, call."""

import math
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from attnres.ops import closed_form, reference
from attnres.ops.precision import without_autocast

IMPLEMENTATIONS: dict[str, ModuleType] = {"closed_form": closed_form, "reference": reference}


def depth_attention(
    query_D: Tensor,
    sources: Sequence[Tensor],
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    impl: str | None = None,
) -> Tensor:
    """Mix the sources of every token by attention over depth (arXiv:2603.15031, eqs. 2-4).

    Nothing is assumed of the leading axes: a token may be a word, an image patch or a graph node.

    Args:
        query_D: learned query, the same for every token.
        sources: S tensors of one shape [..., D], the embedding first.
        key_weight_D: RMSNorm weight of the keys; the values stay unnormalised.
        eps: RMSNorm epsilon, added to the mean square; 0 needs sources without a zero vector.
        impl: "closed_form" or "reference"; None takes `fastest_impl` of the sources' device.
            A named implementation never falls back to another.

    Returns:
        The mix, [..., D], in the widest dtype of the sources. The arithmetic is float32, or
        float64 where a source is float64, also under autocast. One source comes back bit for bit.

    Raises:
        ValueError: no source; shapes, dtypes or devices that do not fit; an unknown `impl`.
    """
    chosen = _check_and_choose(query_D, sources, key_weight_D, eps, impl)
    with without_autocast(query_D.device):
        return chosen.depth_attention(query_D, sources, key_weight_D, eps)


def depth_weights(
    query_D: Tensor,
    sources: Sequence[Tensor],
    key_weight_D: Tensor,
    *,
    eps: float = 1e-6,
    impl: str | None = None,
) -> Tensor:
    """Weights that `depth_attention` gives the sources, [S, ...], float32 or float64.

    Arguments and errors are those of `depth_attention`. Differentiable in every input.
    """
    chosen = _check_and_choose(query_D, sources, key_weight_D, eps, impl)
    with without_autocast(query_D.device):
        return chosen.depth_weights(query_D, sources, key_weight_D, eps)


def fastest_impl(device: torch.device) -> str:
    """Name of the implementation that `impl=None` takes for tensors on `device`."""
    return "closed_form"


def check_eps(eps: float) -> None:
    """ValueError for an epsilon that is negative or no finite number."""
    if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps!r}")


def _check_and_choose(
    query_D: Tensor,
    sources: Sequence[Tensor],
    key_weight_D: Tensor,
    eps: float,
    impl: str | None,
) -> ModuleType:
    _check_sources(sources)
    _check_parameter("query_D", query_D, sources[0])
    _check_parameter("key_weight_D", key_weight_D, sources[0])
    check_eps(eps)
    name = fastest_impl(query_D.device) if impl is None else impl
    if name not in IMPLEMENTATIONS:
        known = ", ".join(sorted(IMPLEMENTATIONS))
        raise ValueError(f"no implementation {name!r} of depth attention; there are: {known}")
    return IMPLEMENTATIONS[name]


def _check_sources(sources: Sequence[Tensor]) -> None:
    if not isinstance(sources, list | tuple) or not all(isinstance(v, Tensor) for v in sources):
        kind = type(sources).__name__
        raise ValueError(f"sources must be a list or tuple of tensors, got a {kind}")
    if len(sources) == 0:
        raise ValueError("depth attention needs at least one source, got none")
    first = sources[0]
    if first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"a source must have shape [..., D] with D > 0, got {list(first.shape)}")
    for i, source in enumerate(sources):
        if not source.is_floating_point():
            raise ValueError(f"source {i} must be floating point, got {source.dtype}")
        if source.shape != first.shape:
            raise ValueError(
                f"sources must have one shape: source {i} has {list(source.shape)}, "
                f"source 0 has {list(first.shape)}"
            )
        if source.device != first.device:
            raise ValueError(
                f"sources must be on one device: source {i} is on {source.device}, "
                f"source 0 on {first.device}"
            )


def _check_parameter(name: str, parameter_D: Tensor, source: Tensor) -> None:
    if not isinstance(parameter_D, Tensor):
        raise ValueError(f"{name} must be a tensor, got {parameter_D!r}")
    if parameter_D.shape != source.shape[-1:]:
        raise ValueError(
            f"{name} must have shape [{source.shape[-1]}], the width of the sources, "
            f"got {list(parameter_D.shape)}"
        )
    if not parameter_D.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {parameter_D.dtype}")
    if parameter_D.device != source.device:
        raise ValueError(f"{name} is on {parameter_D.device}, the sources on {source.device}")
