"""A causal LM = the sublayers of a transformers model + a residual method.

Weights keep the names of the base model, so a plain checkpoint fits; the residual adds
`residual.*`.
"""

from os import PathLike
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from attnres.models.checkpoint import (
    check_config,
    check_weights,
    config_for_plain,
    is_plain,
    read_config,
)
from attnres.models.config import HOW_TO_CONFIGURE, AttnResCausalLMConfig
from attnres.models.joined import join_by
from attnres.models.norms import scale_norm_eps


class AttnResForCausalLM(PreTrainedModel, GenerationMixin):
    """A model of a supported transformers family whose sublayers are joined by a residual method.

    `from_pretrained`, `save_pretrained`, `generate` and gradient checkpointing work as for any
    transformers model. Depth sources belong to one token, so generation needs no cache for them.
    """

    config_class = AttnResCausalLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  as above

    def __init__(self, config: AttnResCausalLMConfig):
        _check_kind(config)
        super().__init__(config)
        config.check_residual_state()
        text = config.text_config
        self.residual = config.residual_config.build(text.hidden_size, config.n_sublayers)
        self.model = AutoModel.from_config(text, dtype=torch.get_default_dtype())
        join_by(self.residual, self.model)
        if config.scaled_norm_eps:
            scale_norm_eps(self.residual, self.model)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

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
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and the mean next-token loss where `labels` (BT, shifted here) are given.

        Arguments are those of every causal LM of transformers; `cache` is the KV cache.

        Raises:
            ValueError: `output_hidden_states` (there is no single hidden state between layers).
        """
        self._refuse(kwargs)
        if self.config.output_attentions:
            kwargs.setdefault("output_attentions", True)
        outputs: BaseModelOutputWithPast = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_BTD = cast(Tensor, outputs.last_hidden_state)
        logits_BTV = self.lm_head(slice_logits_to_keep(hidden_BTD, logits_to_keep))
        loss = None
        if labels is not None:
            vocab_size = self.config.text_config.vocab_size
            loss = self.loss_function(logits_BTV, labels, vocab_size=vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits_BTV, cache=outputs.cache, attentions=outputs.attentions
        )

    def _refuse(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("past_key_values") is not None:
            raise ValueError("the KV cache is called cache, not past_key_values, in transformers 5")
        configs = (self.config, self.config.text_config)
        asked = kwargs.pop("output_hidden_states", None)
        if asked or any(config.output_hidden_states for config in configs):
            raise ValueError(
                "output_hidden_states: between layers there is a residual state, not one hidden "
                "state; attnres.train.probe measures it"
            )

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
        # a part that owns parameters: its parent, which owns none itself, counts as loaded
        if any(module is part for part in self.residual.modules()):
            self.residual.reset_parameters()
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, config=None, **kwargs) -> Any:
        """As in transformers; a plain checkpoint loads where `residual` or `config` is given.

        Raises:
            ValueError: a checkpoint of another model or residual, one whose weights do not fit,
                or a plain one with neither `residual` nor `config`.
        """
        path = pretrained_model_name_or_path
        saved = read_config(path, **kwargs)
        if config is None and is_plain(saved):
            config = config_for_plain(path, saved, kwargs.pop("residual", None))
        elif isinstance(config, str | PathLike):
            config = AttnResCausalLMConfig.from_pretrained(config)
        if config is not None:
            _check_kind(config)
            check_config(path, saved, config)
        asked_for_info = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(
            path, *args, config=config, output_loading_info=True, **kwargs
        )
        model, info = loaded
        check_config(path, saved, model.config)  # keywords may have changed it
        check_weights(path, info)
        return loaded if asked_for_info else model


def _check_kind(config: Any) -> None:
    if not isinstance(config, AttnResCausalLMConfig):
        raise ValueError(f"{type(config).__name__}: give {HOW_TO_CONFIGURE}")


AutoConfig.register("attnres", AttnResCausalLMConfig)
AutoModelForCausalLM.register(AttnResCausalLMConfig, AttnResForCausalLM)
