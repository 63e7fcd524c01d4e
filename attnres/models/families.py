"""The families of transformers models that have an adapter, and why others have none."""

from dataclasses import replace
from typing import Any

from attnres.models import kimi_linear
from attnres.models.sublayers import Attention, Branch, Family, Parallel

QKV = ("q_proj", "k_proj", "v_proj")
ATTENTION = Attention("self_attn", norm="input_layernorm", projections=QKV)
MLP = Branch("mlp", norm="post_attention_layernorm")
PRE_NORM = Family(sublayers=(ATTENTION, MLP))
LATENT = Family(sublayers=(Attention("self_attn", norm="input_layernorm"), MLP))
SANDWICH = Family(
    sublayers=(
        replace(ATTENTION, after="post_attention_layernorm"),
        Branch("mlp", norm="pre_feedforward_layernorm", after="post_feedforward_layernorm"),
    ),
    eps="eps",
)
NEOX_ATTENTION = Attention("attention", norm="input_layernorm", after="post_attention_dropout")
NEOX_MLP = Branch("mlp", norm="post_attention_layernorm", after="post_mlp_dropout")
NEOX = Family(
    sublayers=(Parallel(NEOX_ATTENTION, NEOX_MLP),),
    final_norm="final_layer_norm",
    eps="eps",
    former_names=((r"^embed_out\.", "lm_head."),),
)
NEOX_IN_TURN = replace(NEOX, sublayers=(NEOX_ATTENTION, NEOX_MLP))

FAMILIES: dict[str, Family] = {
    "llama": PRE_NORM,
    "mistral": PRE_NORM,
    "qwen2": PRE_NORM,
    "qwen3": PRE_NORM,
    "qwen3_moe": PRE_NORM,
    "mixtral": PRE_NORM,
    "deepseek_v3": LATENT,
    "kimi_linear": replace(
        LATENT, check_config=kimi_linear.check_config, prepare=kimi_linear.prepare
    ),
    "gemma2": SANDWICH,
    "gemma3_text": SANDWICH,
    "gpt2": Family(
        sublayers=(Attention("attn", norm="ln_1"), Branch("mlp", norm="ln_2")),
        layers="h",
        final_norm="ln_f",
        eps="eps",
    ),
    "gpt_neox": NEOX,
    "phi": Family(
        sublayers=(
            Parallel(
                Attention("self_attn", after="resid_dropout"),
                Branch("mlp", after="resid_dropout"),
                norm="input_layernorm",
            ),
        ),
        final_norm="final_layernorm",
        eps="eps",
    ),
    "phi3": Family(
        sublayers=(
            Attention("self_attn", norm="input_layernorm", after="resid_attn_dropout"),
            Branch("mlp", norm="post_attention_layernorm", after="resid_mlp_dropout"),
        )
    ),
    "olmo": Family(sublayers=(ATTENTION, MLP), eps=None),
    "olmo2": Family(
        sublayers=(
            Attention("self_attn", after="post_attention_layernorm", projections=QKV),
            Branch("mlp", after="post_feedforward_layernorm"),
        )
    ),
    "granite": Family(
        sublayers=(
            replace(ATTENTION, after="residual_multiplier"),
            Branch("mlp", norm="post_attention_layernorm", after="residual_multiplier"),
        )
    ),
    "cohere": Family(
        sublayers=(
            Parallel(Attention("self_attn"), Branch("mlp"), norm="input_layernorm", summed=False),
        )
    ),
    "starcoder2": Family(sublayers=(ATTENTION, MLP), eps="eps"),
}

REFUSED: dict[str, tuple[str, ...]] = {
    "AltUp keeps several streams and LAuReL adds to the skip path": ("gemma3n", "gemma3n_text"),
    "hyper-connections keep several streams": (
        "deepseek_v4",
        "glm5_next",
        "glm5_next_text",
        "hy_v4",
        "hy_v4_vl",
        "hy_v4_vl_text",
        "qwen4_exp",
        "qwen4_exp_text",
    ),
    "its layers attend over depth already": (
        "inkling2",
        "inkling2_text",
        "inkling2_loop",
        "inkling2_loop_text",
    ),
    "every addition to its stream is normed, so the stream is no sum of sublayers": (
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "mpnet",
        "roberta",
        "xlm-roberta",
    ),
}


def check_family(model_type: str) -> None:
    """ValueError for a family without an adapter, with the reason where it can have none."""
    if model_type in FAMILIES:
        return
    for reason, refused in REFUSED.items():
        if model_type in refused:
            raise ValueError(f"the model family {model_type!r} has no single sum: {reason}")
    known = ", ".join(FAMILIES)
    raise ValueError(f"no adapter for the model family {model_type!r}; there are: {known}")


def family_of(config: Any) -> Family:
    """The adapter of the models of a transformers config; ValueError where there is none."""
    check_family(config.model_type)
    if getattr(config, "add_cross_attention", False):
        raise ValueError(
            f"no adapter for a {config.model_type!r} model with add_cross_attention=True"
        )
    if config.model_type == "gpt_neox" and not config.use_parallel_residual:
        return NEOX_IN_TURN
    return FAMILIES[config.model_type]
