"""Configuration of a causal LM with a residual method of choice."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from attnres.models.sublayers import sublayers_of
from attnres.residual import ResidualConfig, residual_from_json


class AttnResCausalLMConfig(PreTrainedConfig):
    """A transformers config, `text_config`, and the residual method that joins its sublayers.

    Args:
        text_config: config of a supported family, for example `LlamaConfig(...)`.
        residual: {"method": "attn_res", "n_blocks": 8}, as `residual_to_json` writes it.
        residual_state: what decides the model's function and no tensor shows (layout, its counting
            version, epsilon). Derived; where it is given, as in a saved config, it must agree.

    Raises:
        ValueError: an unknown family, method or setting; a `residual_state` that disagrees.
    """

    model_type = "attnres"
    sub_configs_defaults = {  # noqa: RUF012  transformers declares it a class attribute
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")
    }

    text_config: Any = None
    residual: Any = None
    residual_state: Any = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.residual = self.residual or {"method": "attn_res"}
        self.tie_word_embeddings = self.text_config.tie_word_embeddings
        derived = self.residual_config.describe(self.n_sublayers)
        if self.residual_state is not None and self.residual_state != derived:
            raise ValueError(
                f"the saved model has {self.residual_state}, but residual={self.residual} over "
                f"{self.n_sublayers} sublayers gives {derived}"
            )
        self.residual_state = derived

    @property
    def n_sublayers(self) -> int:
        per_layer = sublayers_of(self.text_config.model_type)
        return self.text_config.num_hidden_layers * len(per_layer)

    @property
    def residual_config(self) -> ResidualConfig:
        return residual_from_json(self.residual)
