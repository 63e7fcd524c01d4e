"""Tensors of a model in and out, under the names of other projects (`attnres.models.names`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from attnres.models.causal_lm import AttnResForCausalLM
from attnres.models.config import AttnResCausalLMConfig
from attnres.models.names import (
    Naming,
    check_names,
    is_reader,
    naming_of,
    residual_from_named,
    residual_to_named,
)
from attnres.residual import residual_to_json

SHOWN = 3  # names of each kind in a report


@dataclass(frozen=True)
class NamedLoad:
    """What `load_named` did; names are sorted."""

    names: str
    loaded: tuple[str, ...]  # our names
    missing: tuple[str, ...]  # our names of what the checkpoint lacks: these keep their values
    extra: tuple[str, ...]  # their names of what the model lacks
    unread: tuple[str, ...]  # their names of the first reader, which has one source

    def __str__(self) -> str:
        n_readers = sum(is_reader(name, "ours") for name in self.missing)
        return (
            f"{len(self.loaded)} tensors loaded by the names of {self.names}. "
            f"Missing, so that they keep their values: {_some(self.missing)}; {n_readers} of these "
            f"belong to readers. Extra: {_some(self.extra)}. Left out, since the first read has "
            f"one source: {_some(self.unread)}."
        )


def load_named(
    model: AttnResForCausalLM,
    state_dict: Mapping[str, Tensor],
    names: str = "ours",
    *,
    config: Mapping[str, Any] | None = None,
) -> NamedLoad:
    """Copy into a model what fits it of a state dict with other names, and say what did.

    A checkpoint without readers, that of a plain model, fits: readers are then missing.

    Args:
        model: keeps its own dtype; nothing in it is changed where an error is raised.
        state_dict: all tensors of a model; queries are [1, D] there and [D] here.
        names: "ours", "kimi_k3", "fla" or "torchtitan".
        config: that of the checkpoint, as JSON. No tensor shows a layout, so without it nothing is
            known but that there are as many readers here as there.

    Raises:
        ValueError: not one tensor fits; a wrong shape or no values; more or fewer readers than the
            model has, or the names of another project; a layout or an epsilon in `config` that is
            not the model's.
    """
    if config is not None:
        _check_config(model, config, names)
    check_names(state_dict, names)
    expected = _state(model, names)
    given = dict(state_dict)
    unread: list[str] = []
    if names != "ours":
        naming = naming_of(names)
        given = _prefixed(given, naming)
        unread = [name for name in naming.first_reader() if given.pop(name, None) is not None]
    called = _names(model, expected, names)
    _check_readers(model, given, called, names)
    found = {ours: given.pop(theirs) for ours, theirs in called.items() if theirs in given}
    missing = _missing(expected, found)
    if not found:
        theirs, first = min(called.values()), min(given, default="none")
        raise ValueError(
            f"not one of {len(given)} tensors fits by the names of {names}: the model has "
            f"{theirs} and others, the checkpoint {first}"
        )
    found = {ours: _as(expected[ours], ours, tensor) for ours, tensor in found.items()}
    # with what is missing, which may be a part of a fused weight
    model.load_state_dict(_from_disk(model, {**expected, **found}, names))
    return NamedLoad(names, *(tuple(sorted(x)) for x in (found, missing, given, unread)))


def export_named(model: AttnResForCausalLM, names: str) -> dict[str, Tensor]:
    """The tensors of a model as another project calls and shapes them.

    They share the model's memory, as those of `state_dict` do. A reader that is there and not here,
    the first, has a zero query and key weights of one.

    Raises:
        ValueError: an unknown name; a residual that the other project has no words for.
    """
    state = _state(model, names)
    if names == "ours":
        return state
    naming, config = naming_of(names), cast(AttnResCausalLMConfig, model.config)
    size = residual_to_named(config, names)[naming.block_key]
    called = _names(model, state, names)
    tensors = {
        called[ours]: tensor[None] if _is_query(ours) else tensor for ours, tensor in state.items()
    }
    if naming.owns_first and size is not None:
        key_weight_D = state["residual.readers.1.key_weight"]
        query, key_weight = naming.first_reader()
        tensors[query] = torch.zeros_like(key_weight_D)[None]
        tensors[key_weight] = torch.ones_like(key_weight_D)
    return tensors


def _state(model: AttnResForCausalLM, names: str) -> dict[str, Tensor]:
    """The model's tensors, for other projects as transformers would write them to a disk."""
    state = model.state_dict()
    if any(tensor.is_meta for tensor in state.values()):
        raise ValueError("the model is on the meta device: it has no values")
    return state if names == "ours" else _undo(_conversions(model), model, state)


def _conversions(model: AttnResForCausalLM) -> list[Any]:
    """What transformers does to the weights of some families on loading: it fuses and renames."""
    found = get_model_conversion_mapping(model, add_legacy=False)
    return [conversion for conversion in found if not isinstance(conversion, PrefixChange)]


def _undo(
    conversions: list[Any], model: AttnResForCausalLM, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    if not conversions:
        return tensors
    loaded_by: Any = SimpleNamespace(_weight_conversions=conversions, config=model.config)
    return revert_weight_conversion(loaded_by, tensors)


def _from_disk(
    model: AttnResForCausalLM, tensors: dict[str, Tensor], names: str
) -> dict[str, Tensor]:
    """What `_state` undid is done again."""
    undone = [conversion.reverse_transform() for conversion in reversed(_conversions(model))]
    return tensors if names == "ours" else _undo(undone, model, tensors)


def _names(model: AttnResForCausalLM, state: Mapping[str, Tensor], names: str) -> dict[str, str]:
    """What each tensor of ours is called."""
    if names == "ours":
        return {ours: ours for ours in state}
    return {ours: naming_of(names).name(ours, model.config.n_sublayers) for ours in state}


def _prefixed(tensors: dict[str, Tensor], naming: Naming) -> dict[str, Tensor]:
    if any(name.startswith(naming.prefix) for name in tensors):
        return tensors
    return {naming.prefix + name: tensor for name, tensor in tensors.items()}


def _check_readers(
    model: AttnResForCausalLM, given: Mapping[str, Tensor], called: Mapping[str, str], names: str
) -> None:
    there = {name for name in given if is_reader(name, names)}
    here = {theirs for ours, theirs in called.items() if is_reader(ours, "ours")}
    if there and there != here:
        raise ValueError(
            f"the checkpoint has {len(there)} tensors of readers, the model {len(here)}; only one "
            f"of the two has {min(there ^ here)}"
        )
    if there and names != "ours":
        residual_to_named(cast(AttnResCausalLMConfig, model.config), names)


def _check_config(model: AttnResForCausalLM, config: Mapping[str, Any], names: str) -> None:
    if names == "ours":
        model.config.check_residual_state(config.get("residual_state"))
        return
    residual = residual_from_named(config, names)
    method = residual_to_json(residual)["method"]
    state = {"method": method, **residual.describe(model.config.n_sublayers)}
    model.config.check_residual_state(state)


def _missing(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Tensors that got no value, not even as another name of one that did (tied weights)."""
    filled = {expected[name].data_ptr() for name in found}
    return [name for name, tensor in expected.items() if tensor.data_ptr() not in filled]


def _as(like: Tensor, ours: str, tensor: Tensor) -> Tensor:
    """A tensor in the shape of ours; ValueError where it is neither that nor a query's row."""
    row = (1, *like.shape) if _is_query(ours) else like.shape
    if tensor.shape not in (row, like.shape):
        raise ValueError(
            f"{ours} has shape {list(like.shape)}, in the checkpoint {[*tensor.shape]}"
        )
    if tensor.is_meta:
        raise ValueError(f"{ours} is on the meta device in the checkpoint: it has no values")
    return tensor.reshape(like.shape)


def _is_query(ours: str) -> bool:
    return is_reader(ours, "ours") and ours.endswith(".query")


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names)} ({shown})" if names else "0"
