"""A pretrained model with attention over depth and the same function; and back.

    model = convert(AutoModelForCausalLM.from_pretrained(folder), n_blocks=8)

| form | what a sublayer reads with zero queries |
|---|---|
| centered | the ordinary stream, bit for bit |
| sum | the ordinary stream, to rounding |
| mean | the stream over the number n of sources; norms use eps / n^2 (`scaled_norm_eps`) |

The forms are one model for every query (docs/conversion.md). Weights are shared with the model
that was given, not copied, unless that is asked for.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from attnres.models.causal_lm import AttnResForCausalLM
from attnres.models.config import AttnResCausalLMConfig
from attnres.models.families import family_of
from attnres.models.self_test import ConversionReport, self_test
from attnres.residual import AttnResConfig, CenteredConfig, ResidualConfig, SummedConfig
from attnres.residual.depth_reader import AttendsOverDepth

FORMS: dict[str, Any] = {
    "centered": CenteredConfig,
    "sum": SummedConfig,
    "mean": AttnResConfig,
}
MEANS = ("attn_res", "two_phase")  # methods that read a mean
N_BLOCKS = 8  # where no layout is asked for
NOT_A_SUM = (
    "a mean form without scaled_norm_eps is no ordinary residual at the start: its norms see eps"
)


def convert(
    model: PreTrainedModel,
    residual: ResidualConfig | dict[str, Any] | str | None = None,
    *,
    n_blocks: int | None = None,
    layers_per_block: int | None = None,
    sublayers_per_block: int | None = None,
    form: str = "centered",
    copy_weights: bool = False,
    report: Callable[[ConversionReport], Any] = lambda report: None,
) -> AttnResForCausalLM:
    """A causal LM of transformers as an AttnResForCausalLM with the same function.

    Args:
        model: of a supported family, in memory; it stays as it is.
        residual: the method, as in `AttnResCausalLMConfig`; "attn_res" is the mean form.
        n_blocks, layers_per_block, sublayers_per_block: where no `residual` is given, one of them,
            or 8 blocks (in a model of fewer sublayers, as many as these).
        form: then "centered", "sum" or "mean".
        copy_weights: give the new model weights of its own.
        report: called with what the self-test found, on random tokens.

    Raises:
        ValueError: no model of a supported family, or one with code or weights of its own, or with
            weights on several devices or without values; a mean form where a sublayer reads the
            stream without a norm; a centered form whose logits are not those of `model`, bit for
            bit.
    """
    _check_plain(model)
    units = {
        "n_blocks": n_blocks,
        "layers_per_block": layers_per_block,
        "sublayers_per_block": sublayers_per_block,
    }
    units = {name: value for name, value in units.items() if value is not None}
    if residual is None:
        residual = _kind_of(form)(**units or _default_units(model.config))
    elif units or form != "centered":
        raise ValueError(f"residual={residual!r} says it all; got {units or form} beside it")
    config = _config(model.config, residual)
    converted = with_weights_of(model, AttnResForCausalLM, config, copy_weights)
    found = self_test(model, converted)
    report(found)
    if config.residual["method"] == "centered" and not found.is_equal:
        raise ValueError(
            "the centered form is not the model bit for bit, so its adapter is wrong, or the model "
            "gives NaN or has hooks or changes that its config and weights do not show: logits "
            f"differ by up to {found.largest_difference}"
        )
    return converted


def revert(model: AttnResForCausalLM, *, lossy: bool = False) -> PreTrainedModel:
    """The plain transformers model; weights are shared.

    Args:
        lossy: also where that is another function: depth weights are dropped.

    Raises:
        ValueError: trained queries, which the plain model has no place for, a mean form whose norms
            do not make up for the mean, or another method; unless `lossy`.
    """
    if not lossy:
        _check_revertible(model)
    text_config = copy.deepcopy(model.config.text_config)
    kind = AutoModelForCausalLM._model_mapping[type(text_config)]
    return with_weights_of(model, kind, text_config)


def change_form(model: AttnResForCausalLM, form: str) -> AttnResForCausalLM:
    """The same model, also where queries are trained, in another form; weights are shared.

    Raises:
        ValueError: a residual that has no such forms; a mean form that is not this model.
    """
    kind, settings = _kind_of(form), dict(model.config.residual)
    method = settings.pop("method")
    if method not in (*MEANS, "sum", "centered"):
        raise ValueError(f"residual method {method!r} has no form {form!r}")
    if method in MEANS and not model.config.scaled_norm_eps:
        raise ValueError(NOT_A_SUM)
    settings.pop("readers_per_group", None)
    config = _config(model.config.text_config, kind(**settings))
    return with_weights_of(model, AttnResForCausalLM, config)


def check_units(model: AttnResForCausalLM, units: dict[str, Any]) -> None:
    """ValueError where a layout is asked for that is not the model's."""
    if not units:
        return
    asked = AttnResConfig(**units).layout(model.config.n_sublayers)
    layout = getattr(model.residual, "layout", None)
    if layout is None:
        method = model.config.residual["method"]
        raise ValueError(f"the model was made with residual method {method!r}, which has no blocks")
    if layout != asked:
        raise ValueError(
            f"the model was made with blocks of {list(layout.sizes)} sublayers, {units} gives "
            f"{list(asked.sizes)}: another layout is another model"
        )


def _check_plain(model: Any) -> None:
    """ValueError for anything but a causal LM of transformers itself."""
    if isinstance(model, AttnResForCausalLM):
        raise ValueError("the model is converted already; change_form gives it another form")
    config = getattr(model, "config", None)
    if not isinstance(model, PreTrainedModel) or not isinstance(config, PreTrainedConfig):
        raise ValueError(f"a causal LM of transformers is needed, got a {type(model).__name__}")
    family_of(config)
    devices = {str(tensor.device) for tensor in model.state_dict().values()}
    if "meta" in devices or len(devices) > 1:
        raise ValueError(
            f"the weights are on {', '.join(sorted(devices))}: convert needs them on one device, "
            "none offloaded; a device map is for loading what save_pretrained wrote"
        )
    if _quantization(config) not in (None, "gguf"):
        raise ValueError(f"the weights are quantised by {_quantization(config)}: load them without")
    kind: Any = AutoModelForCausalLM._model_mapping[type(config)]
    if type(model) is not kind:
        raise ValueError(
            f"a {kind.__name__} of transformers is needed, got a {type(model).__name__}: code of "
            "its own, or none of a head, would be lost"
        )


def _check_revertible(model: AttnResForCausalLM) -> None:
    method, residual = model.config.residual["method"], model.residual
    if method == "standard":
        return
    if not isinstance(residual, AttendsOverDepth) or residual.starts_as == "other":
        raise ValueError(
            f"residual method {method!r} is no ordinary residual: lossy takes the weights of the "
            "plain model nevertheless"
        )
    if not residual.is_untrained():
        raise ValueError(
            "the queries are trained, and the plain model has no depth weights: lossy drops them"
        )
    if residual.starts_as == "multiple" and not model.config.scaled_norm_eps:
        raise ValueError(f"{NOT_A_SUM}: lossy takes its weights nevertheless")


def plain_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy without the mark of a GGUF file, whose weights are plain once they are loaded."""
    config = copy.deepcopy(config)
    if _quantization(config) == "gguf":
        delattr(config, "quantization_config")
    return config


def _quantization(config: Any) -> str | None:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    return str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))


def _kind_of(form: str) -> Any:
    if form not in FORMS:
        raise ValueError(f"no form {form!r}; there are: {', '.join(FORMS)}")
    return FORMS[form]


def _default_units(text_config: PreTrainedConfig) -> dict[str, int]:
    config = AttnResCausalLMConfig(text_config=text_config, residual="standard")
    return {"n_blocks": min(N_BLOCKS, config.n_sublayers)}


def _config(text_config: PreTrainedConfig, residual: Any) -> AttnResCausalLMConfig:
    text_config = plain_config(text_config)
    config = AttnResCausalLMConfig(text_config=text_config, residual=residual)
    if config.residual["method"] not in MEANS:
        return config
    return AttnResCausalLMConfig(text_config=text_config, residual=residual, scaled_norm_eps=True)


def with_weights_of(
    model: PreTrainedModel, kind: Any, config: PreTrainedConfig, copy_weights: bool = False
) -> Any:
    """A model of another class with the weights of `model`; readers that it lacks start anew."""
    with torch.device("meta"):
        new = kind(config)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    if copy_weights:
        copies = {id(tensor): _copied(tensor) for tensor in tensors.values()}
        tensors = {name: copies[id(tensor)] for name, tensor in tensors.items()}
    is_new = not any(name.startswith("residual.") for name in tensors)
    if is_new and isinstance(new, AttnResForCausalLM):
        new.residual.to_empty(device=model.device).to(model.dtype)
        new.residual.reset_parameters()
        tensors |= {f"residual.{name}": p for name, p in new.residual.named_parameters()}
    _put(new, tensors)
    new.generation_config = copy.deepcopy(model.generation_config)
    if model.is_activation_checkpointing:
        new.activation_checkpointing_enable({"use_reentrant": False})
    return new.train(model.training)


def _put(new: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Replace every tensor of `new` by the one of its name; readers may be left over."""
    left = set(tensors)
    for prefix, module in new.named_modules():
        owned: list[Any] = [module._parameters, module._buffers]
        for own in owned:
            for name in [name for name, tensor in own.items() if tensor is not None]:
                full = f"{prefix}.{name}" if prefix else name
                if full not in tensors:
                    raise ValueError(f"the model lacks {full}, which {type(new).__name__} has")
                own[name] = tensors[full]
                left.discard(full)
    extra = sorted(name for name in left if not name.startswith("residual."))
    if extra:
        raise ValueError(
            f"the model has {len(extra)} weights that {type(new).__name__} lacks, the first is "
            f"{extra[0]}"
        )


def _copied(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied
