"""A causal LM = a family's own causal LM, its sublayers joined by a residual method.

Weights keep the names of the family's model, so a plain checkpoint fits; the residual adds
`residual.*`.
"""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from attnres.models.checkpoint import (
    check_config,
    check_index,
    check_n_layers,
    check_weights,
    config_for_plain,
    is_plain,
    read_config,
    text_config_of,
)
from attnres.models.config import HOW_TO_CONFIGURE, AttnResCausalLMConfig
from attnres.models.families import family_of
from attnres.models.front import Front, in_front
from attnres.models.joined import join_by
from attnres.models.norms import scale_norm_eps
from attnres.models.taps import Tap, chosen

MAY_LACK = ("residual.", "lm_head.")  # of a plain checkpoint: readers, and the head of a base model


class AttnResForCausalLM(Front, PreTrainedModel, GenerationMixin):
    """A model of a supported transformers family whose sublayers are joined by a residual method.

    It is put before the family's own causal LM class, whose embeddings, loop, head, loss and
    initialisation it has: a model of a Llama config is an `AttnResForCausalLM` and a
    `LlamaForCausalLM`. `from_pretrained`, `save_pretrained`, `generate` and gradient checkpointing
    work as for any transformers model. Depth sources belong to one token, so generation needs no
    cache for them.
    """

    config_class = AttnResCausalLMConfig
    config: AttnResCausalLMConfig

    def __new__(cls, config: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cls.is_joint:  # without a config where torch makes an empty one
            return super().__new__(cls)
        return super().__new__(_joint_class(cls, _check_kind(config).text_config))

    def __init__(self, config: AttnResCausalLMConfig):
        _check_kind(config)
        config.check_residual_state()
        text = config.text_config
        super().__init__(text)
        self.config, self.name_or_path = config, config.name_or_path
        config._attn_implementation = text._attn_implementation  # the family's, if none was asked
        config._experts_implementation = text._experts_implementation
        self.residual = config.residual_config.build(text.hidden_size, config.n_sublayers)
        if config.scaled_norm_eps:
            scale_norm_eps(self.residual, self.base_model)

    def __setattr__(self, name: str, value: Any) -> None:
        """Another `residual` joins the sublayers: PEFT puts a wrapper of a copy in its place."""
        super().__setattr__(name, value)
        if name == "residual":
            base: Any = self.base_model
            join_by(value, base)
            self._no_split_modules = base._no_split_modules

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | int | list[int] | None = None,
        taps: list[Tap] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and the mean next-token loss where `labels` (BT, shifted here) are given.

        Arguments are those of every causal LM of transformers, and what the family's own takes
        besides; `cache` is the KV cache. With `output_hidden_states`, `hidden_states` are the
        mixes, each BTD: entry d is what the sublayer at depth d reads, before its norm, and the
        last, entry L, what the final norm reads. Indices choose some, as in transformers. A list
        given as `taps` gets one `Tap` a read, which has the running sum besides.

        Raises:
            ValueError: `past_key_values`, the former name of `cache`.
        """
        if kwargs.get("past_key_values") is not None:
            raise ValueError("the KV cache is called cache, not past_key_values, in transformers 5")
        asked = self._asked_for(output_hidden_states)
        found: list[Tap] | None = [] if asked or taps is not None else None
        if self.config.output_attentions:
            kwargs.setdefault("output_attentions", True)
        outputs = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            output_hidden_states=False,
            taps=found,
            return_dict=True,
            **kwargs,
        )
        if found is not None:
            outputs.hidden_states = chosen(found, asked) if asked else None
            if taps is not None:
                taps.extend(found)
            found.clear()  # a state may outlive this call in what is kept for the backward
        return outputs

    def _asked_for(self, hidden_states: Any) -> Any:
        if hidden_states is not None:
            return hidden_states
        return any(x.output_hidden_states for x in (self.config, self.config.text_config))

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """As in transformers; re-entrant checkpointing would lose the gradients of a state."""
        settings = activation_checkpointing_kwargs or {}
        if settings.get("use_reentrant", False) is not False:  # torch takes None for True
            raise ValueError(
                "use_reentrant must be False, or the gradients of a residual state are lost; got "
                f"{settings['use_reentrant']}"
            )
        super().activation_checkpointing_enable(
            {"use_reentrant": False, **settings}, *args, **kwargs
        )

    def _init_weights(self, module: nn.Module) -> None:
        residual = self._modules.get("residual")  # None while the family's own model is made
        # a part that owns parameters: its parent, which owns none itself, counts as loaded
        if residual is not None and any(module is part for part in residual.modules()):
            self.residual.reset_parameters()
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        """As in transformers; a plain checkpoint loads where `residual` or `config` is given.

        Raises:
            ValueError: a checkpoint of another model or residual, one whose weights do not fit,
                or a plain one with neither `residual` nor `config`.
        """
        path = pretrained_model_name_or_path
        check_index(path)
        saved = read_config(path, **kwargs)
        check_n_layers(path, saved)
        config = _config_to_load_by(path, saved, config, kwargs)
        text = text_config_of(saved) if config is None else config.text_config
        names = dict(family_of(text).former_names)  # transformers finds them by the class's name
        kwargs.setdefault("use_safetensors", True)  # or transformers would unpickle what it finds
        kwargs["key_mapping"] = names | (kwargs.pop("key_mapping", None) or {})
        asked_for_info = kwargs.pop("output_loading_info", False)
        joint: Any = super(AttnResForCausalLM, _joint_class(cls, text))
        loaded = joint.from_pretrained(
            path, *args, config=config, output_loading_info=True, **kwargs
        )
        model, info = loaded
        check_config(path, saved, model.config)  # keywords may have changed it
        check_weights(path, info, MAY_LACK if is_plain(saved) or not saved else ())
        return loaded if asked_for_info else model


def _config_to_load_by(
    path: Any, saved: Mapping[str, Any], config: Any, kwargs: dict[str, Any]
) -> AttnResCausalLMConfig | None:
    """The config that was given, checked, or None where the saved one is to be read."""
    if config is None and is_plain(saved):
        config = config_for_plain(path, saved, kwargs.pop("residual", None))
    elif isinstance(config, str | PathLike):
        config = AttnResCausalLMConfig.from_pretrained(config)
    if config is None and saved:
        return None
    config = _check_kind(config)
    check_config(path, saved, config)
    return config


def _check_kind(config: Any) -> AttnResCausalLMConfig:
    if not isinstance(config, AttnResCausalLMConfig):
        raise ValueError(f"{type(config).__name__}: give {HOW_TO_CONFIGURE}")
    return config


def _joint_class(kind: Any, text_config: PreTrainedConfig) -> Any:
    """The family's own causal LM with `kind` before it, or what `kind` has before its own."""
    front = kind.__bases__[0] if kind.is_joint else kind
    return in_front(front, MODEL_FOR_CAUSAL_LM_MAPPING[type(text_config)])


AutoConfig.register("attnres", AttnResCausalLMConfig)
AutoModelForCausalLM.register(AttnResCausalLMConfig, AttnResForCausalLM)
