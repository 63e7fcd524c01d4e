"""Whether a saved model fits a config: a checkpoint that would give another model is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from attnres.fields import shown
from attnres.inside import check_plain
from attnres.json_file import read_object
from attnres.models.config import HOW_TO_CONFIGURE, AttnResCausalLMConfig
from attnres.models.families import check_family

IMPLEMENTATIONS = tuple(
    f"{private}{part}_implementation" for private in ("", "_") for part in ("attn", "experts")
)
N_LAYERS = ("num_hidden_layers", "n_layer")  # its names in configs of the families
INDEX = "model.safetensors.index.json"
# what decides a model's function and no shape shows, by its name in any family
SHAPELESS_SETTINGS = (
    *("num_hidden_layers", "layer_types", "use_bidirectional_attention", "sliding_window"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "linear_num_heads", "linear_head_dim"),
    *("rope_parameters", "rope_interleave", "original_max_position_embeddings"),
    *("hidden_act", "hidden_activation", "activation_function"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    *("attention_multiplier", "query_pre_attn_scalar", "attn_logit_softcapping", "clip_qkv"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "use_parallel_residual"),
    *("num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"),
    *("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers", "mlp_layer_types"),
    *("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
    *("final_logit_softcapping", "tie_word_embeddings", "gate_lower_bound"),
)


def read_config(path: Any, **kwargs: Any) -> dict[str, Any]:
    """The saved config of a checkpoint; empty where there is no path, but weights alone."""
    if path is None:
        return {}
    saved, _ = AttnResCausalLMConfig.get_config_dict(path, **kwargs)
    check_no_code(path, saved)
    if not is_plain(saved) and saved.get("residual_state") is None:
        raise ValueError(
            f"{path} has no residual_state in its config, so nothing says which residual its "
            "weights were made with"
        )
    return saved


def check_no_code(path: Any, saved: Mapping[str, Any]) -> None:
    """ValueError where a config names a kernel of the hub, which is code."""
    configs = [each for each in (saved, saved.get("text_config")) if isinstance(each, dict)]
    for value in (config.get(name) for config in configs for name in IMPLEMENTATIONS):
        if "/" in str(value):
            raise ValueError(f"{path} wants code of {shown(value)}, which is never run")


def check_n_layers(path: Any, saved: Mapping[str, Any]) -> None:
    """ValueError where a folder's config claims more layers than its weights have tensors.

    Each layer is made before weights are looked at: a wrong number would take minutes and memory.
    """
    text = saved.get("text_config")
    config = text if isinstance(text, dict) else saved
    n_tensors = _n_tensors(path)
    for name in N_LAYERS:
        n_layers = config.get(name)
        if n_tensors and isinstance(n_layers, int) and n_layers > n_tensors:
            raise ValueError(f"{path} has {name}={shown(n_layers)}, but {n_tensors} tensors")


def _n_tensors(path: Any) -> int:
    """In the safetensors of a folder; 0 where it is none, or a file of it cannot be read."""
    from safetensors import SafetensorError, safe_open

    n_tensors = 0
    for file in Path(path).glob("*.safetensors") if path is not None else ():
        try:
            with safe_open(file, "pt") as opened:
                n_tensors += len(opened.keys())
        except (SafetensorError, OSError):  # transformers names what is wrong with it
            return 0
    return n_tensors


def check_index(path: Any) -> None:
    """ValueError where a folder's index of weights names files elsewhere."""
    if path is not None and (index := Path(path) / INDEX).is_file():
        read_weight_map(index)


def read_weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, beside the index; ValueError for one that is elsewhere."""
    found = read_object(index).get("weight_map")
    if not isinstance(found, dict):
        raise ValueError(f"{index} is damaged: it has no weight_map")
    return {name: check_plain(file, index) for name, file in found.items()}


def is_plain(saved: Mapping[str, Any]) -> bool:
    """Whether a saved config is that of a model of transformers itself."""
    return saved.get("model_type", "attnres") != "attnres"


def text_config_of(saved: Mapping[str, Any]) -> PreTrainedConfig:
    """The transformers config of a plain checkpoint or of one of ours."""
    text = dict(saved if is_plain(saved) else saved["text_config"])
    family = text.pop("model_type")
    check_family(family)  # transformers would name all of its families
    return AutoConfig.for_model(family, **text)


def config_for_plain(path: Any, saved: Mapping[str, Any], residual: Any) -> AttnResCausalLMConfig:
    """The config of a plain checkpoint with a residual; ValueError where none is given."""
    if residual is None:
        raise ValueError(
            f"{path} is a plain {saved['model_type']!r} checkpoint: give residual=, for example "
            f"'attn_res:n_blocks=8', or config={HOW_TO_CONFIGURE}"
        )
    return AttnResCausalLMConfig(text_config=text_config_of(saved), residual=residual)


def check_config(path: Any, saved: Mapping[str, Any], config: AttnResCausalLMConfig) -> None:
    """ValueError where `config` gives another function than the `saved` one of a checkpoint."""
    if not saved:
        return
    text = config.text_config
    family = (saved if is_plain(saved) else saved["text_config"])["model_type"]
    if family != text.model_type:
        raise ValueError(
            f"{path} is a {family!r} checkpoint, but text_config is a {text.model_type!r} one"
        )
    saved_text = text_config_of(saved)
    for name in SHAPELESS_SETTINGS:
        was, asked = (_setting(made, name) for made in (saved_text, text))
        if was != asked:
            raise ValueError(f"{path} has {name}={was}, but text_config has {asked}")
    if not is_plain(saved):
        config.check_residual_state(saved["residual_state"])


def _setting(config: PreTrainedConfig, name: str) -> Any:
    """Some of kimi_linear are in a dict of their own."""
    nested = getattr(config, "linear_attn_config", None) or {}
    return getattr(config, name, nested.get(name))


def check_weights(path: Any, info: Mapping[str, Any], may_lack: tuple[str, ...] = ()) -> None:
    """ValueError where weights do not fit, are missing or left over.

    Args:
        info: the loading info of transformers.
        may_lack: beginnings of the names of weights that then keep their start values.
    """
    for name, given, expected in sorted(info["mismatched_keys"]):
        raise ValueError(f"{path}: {name} has shape {[*given]}, by the config it has {[*expected]}")
    missing = [name for name in info["missing_keys"] if not name.startswith(may_lack)]
    for names, what in (
        (missing, "lacks {} weights of the model"),
        (info["unexpected_keys"], "has {} weights that the model lacks"),
    ):
        if names:
            raise ValueError(f"{path} {what.format(len(names))}, the first is {min(names)}")
