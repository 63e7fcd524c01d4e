"""Configuration of a causal LM with a residual method of choice."""

from dataclasses import fields
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from attnres.models.families import family_of
from attnres.residual import (
    RESIDUALS,
    AttnResConfig,
    ResidualConfig,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)

HOW_TO_CONFIGURE = "AttnResCausalLMConfig(text_config=..., residual=...)"
RESIDUAL_SETTINGS = {field.name for kind in RESIDUALS.values() for field in fields(kind)}


class AttnResCausalLMConfig(PreTrainedConfig):
    """A transformers config, `text_config`, and the residual method that joins its sublayers.

    Args:
        text_config: config of a supported family, for example `LlamaConfig(...)`.
        residual: {"method": "attn_res", "n_blocks": 8}, `AttnResConfig(n_blocks=8)` or
            "attn_res:n_blocks=8"; kept as a dict. None is what `attn_res_block_size` in the text
            config asks for, or Full.
        scaled_norm_eps: let the norm that follows a read of the mean of n sources use eps / n^2, so
            that zero queries give the function of the standard residual, to rounding.
        residual_state: what decides the model's function and no tensor shows (method, layout, its
            counting version, epsilon). Derived; where it is given, as in a saved config, it must
            agree.

    Raises:
        ValueError: an unknown family, method or setting; a `residual_state` that disagrees.
    """

    model_type = "attnres"
    sub_configs_defaults = {  # noqa: RUF012  transformers declares it a class attribute
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")
    }

    text_config: Any = None
    residual: Any = None
    scaled_norm_eps: bool = False
    residual_state: Any = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs):
        _refuse_settings_of_the_residual(kwargs)
        _check_text_config(self.text_config)
        for name in ("attn_implementation", "experts_implementation"):  # else None, in both configs
            kwargs.setdefault(name, getattr(self.text_config, f"_{name}", None))
        super().__post_init__(**kwargs)
        text: Any = self.text_config
        if (check := family_of(text).check_config) is not None:
            check(text)
        self.tie_word_embeddings = text.tie_word_embeddings
        self.dtype = self.dtype or text.dtype
        if self.residual_state is None:
            self.residual_state = self._derived_state()
        self.check_residual_state()
        self._check_block_size()

    def __getattr__(self, name: str) -> Any:
        """What only the text config says, which the family's own head and loss ask for."""
        text = self.__dict__.get("text_config")
        if name.startswith("_") or not isinstance(text, PreTrainedConfig):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(text, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "residual":
            value = _residual_to_dict(_asked_of(self.text_config) if value is None else value)
        if self._is_of_the_text_config(name):
            setattr(self.text_config, name, value)
        else:
            super().__setattr__(name, value)

    def _is_of_the_text_config(self, name: str) -> bool:
        own = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        return not own and hasattr(self, name)

    def check_residual_state(self, saved: dict[str, Any] | None = None) -> None:
        """ValueError where `residual` does not give `residual_state`, or that of a checkpoint."""
        derived = self._derived_state()
        for state in (self.residual_state, saved):
            if state is not None and state != derived:
                raise ValueError(
                    f"residual={self.residual} over {self.n_sublayers} sublayers gives {derived}, "
                    f"but the model was made with {state}"
                )

    def _check_block_size(self) -> None:
        """ValueError where a config of Kimi K3 asks for other blocks than `residual` has."""
        asked = _asked_of(self.text_config)
        if asked is None:
            return
        expected = asked.describe(self.n_sublayers)
        if self.residual_state.get("layout") != expected["layout"]:
            raise ValueError(
                f"attn_res_block_size={asked.layers_per_block} (in layers) asks for "
                f"residual={format_residual(asked)!r}, not for {self.residual}"
            )

    def _derived_state(self) -> dict[str, Any]:
        n_layers = self.residual.get("layers_per_block")
        if n_layers is not None and self.n_sublayers == self.text_config.num_hidden_layers:
            raise ValueError(
                f"layers_per_block={n_layers}: attention and MLP of a "
                f"{self.text_config.model_type} layer are one sublayer, so give "
                f"sublayers_per_block={n_layers}"
            )
        n_per_layer = len(family_of(self.text_config).sublayers)
        given = getattr(self.residual_config, "sublayers_per_layer", n_per_layer)
        if given > n_per_layer:
            raise ValueError(
                f"sublayers_per_layer={given}: a {self.text_config.model_type} layer is "
                f"{n_per_layer} sublayer, so give sublayers_per_layer={n_per_layer}"
            )
        state = self.residual_config.describe(self.n_sublayers)
        if self.scaled_norm_eps:
            state["norm_eps"] = "over the square of the number of sources"
        return {"method": self.residual["method"], **state}

    @property
    def n_sublayers(self) -> int:
        per_layer = len(family_of(self.text_config).sublayers)
        return self.text_config.num_hidden_layers * per_layer

    @property
    def residual_config(self) -> ResidualConfig:
        return residual_from_json(self.residual)


def _check_text_config(text_config: Any) -> None:
    if not isinstance(text_config, PreTrainedConfig | dict | None):
        raise ValueError(f"text_config is a config, for example LlamaConfig(), got {text_config!r}")


def _asked_of(text_config: Any) -> AttnResConfig | None:
    """The residual that a config asks for by the key of Kimi K3; see `residual_from_named`."""
    size = getattr(text_config, "attn_res_block_size", None)
    if size is None:
        return None
    return AttnResConfig(layers_per_block=size, eps=text_config.rms_norm_eps)


def _residual_to_dict(residual: Any) -> dict[str, Any]:
    """A dict of its own, whichever form is given; Full AttnRes where none is."""
    if isinstance(residual, str):
        residual = parse_residual(residual)
    if isinstance(residual, ResidualConfig):
        return residual_to_json(residual)
    if not isinstance(residual, dict | None):
        raise ValueError(
            "residual is a dict, a config of attnres.residual or a text such as "
            f"'attn_res:n_blocks=8', got {residual!r}"
        )
    return dict(residual or {"method": "attn_res"})


def _refuse_settings_of_the_residual(keywords: dict[str, Any]) -> None:
    """A transformers config keeps any keyword, so a misplaced one would do nothing."""
    for name in sorted(keywords.keys() & {*RESIDUAL_SETTINGS, "method", "block_size"}):
        where = 'residual={"method": "attn_res", ...}'
        if name == "block_size":
            where += (
                ", as sublayers_per_block or layers_per_block, since block sizes count sublayers "
                "(the paper, FLA) or layers (Kimi K3, Megatron)"
            )
        raise ValueError(f"{name}={keywords[name]} belongs into {where}")
