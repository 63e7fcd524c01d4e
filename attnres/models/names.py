"""What readers, weights and blocks are called in other projects that attend over depth.

A naming says what a tensor of ours is called there and in which unit a block is counted. Sources:
Kimi K3, the released checkpoint (arXiv:2607.24653); FLA, flash-linear-attention 0.6.0; torchtitan,
its `models/kimi_k3`. All three read as `AttnRes` does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnres.layout import SUBLAYERS_PER_LAYER, BlockLayout, check_count
from attnres.models.config import AttnResCausalLMConfig
from attnres.residual import AttnResConfig, ResidualConfig, StandardConfig, TwoPhaseConfig

OUR_READER = re.compile(r"residual\.readers\.(\d+)\.(query|key_weight)")
THEIR_PARAMETER = re.compile(r"(?:^|\.)(\w+)_(?:proj|norm)\.weight$")
PARAMETERS = {"query": "proj", "key_weight": "norm"}
INKLING = re.compile(
    r"(attention_input|mlp_input|final_input|message_input|attn_res)\.\w*quer(y|ies)(\.\d+)?$"
)
INKLING_BLOCK_KEY = "n_layers_per_attn_res_block"
WHY_NO_INKLING = (
    "Inkling-2 reads over depth in another way, for which there is no residual method: it mixes "
    "normalised sources, divides logits by sqrt(D), has no key weights, and its full-attention "
    "layers have three queries (for q, k and v)"
)


@dataclass(frozen=True, kw_only=True)
class Naming:
    """The names of one project.

    A reader is a `<name>_proj.weight` of shape [1, D], our query, and a `<name>_norm.weight` of
    shape [D], our key_weight.
    """

    attention: str  # the reader before attention
    mlp: str  # the one before the MLP
    output: str  # the one before the final norm
    block_key: str  # size of a block in a config
    unit: str  # that it is counted in, as a setting of `AttnResConfig`
    eps_key: str  # epsilon of the keys in a config
    one_eps: bool = True  # which is that of all norms of the model
    owns_first: bool = True  # there is a reader before the first sublayer, which nothing reads
    prefix: str = ""  # before every name; a checkpoint of text alone may lack it
    renamed: tuple[tuple[str, str], ...] = ()  # patterns in our names and what they are there

    @property
    def readers(self) -> tuple[str, str, str]:
        return self.attention, self.mlp, self.output

    def name(self, ours: str, n_sublayers: int) -> str:
        """What a tensor of ours is called; `n_sublayers` is the depth of the output read."""
        reader = OUR_READER.fullmatch(ours)
        if reader is not None:
            depth, parameter = int(reader[1]), PARAMETERS[reader[2]]
            layer, is_mlp = divmod(depth, SUBLAYERS_PER_LAYER)
            place = f"layers.{layer}.{self.readers[is_mlp]}"
            ours = f"model.{self.output if depth == n_sublayers else place}_{parameter}.weight"
        for pattern, theirs in self.renamed:
            ours = re.sub(pattern, theirs, ours)
        return self.prefix + ours

    def first_reader(self) -> tuple[str, str]:
        """Query and key_weight of the read before the first sublayer, which has one source."""
        first = (f"residual.readers.0.{parameter}" for parameter in PARAMETERS)
        query, key_weight = (self.name(ours, -1) for ours in first)
        return query, key_weight


NAMINGS = {
    "kimi_k3": Naming(
        attention="self_attention_res",
        mlp="mlp_res",
        output="output_attn_res",
        block_key="attn_res_block_size",
        unit="layers_per_block",
        eps_key="rms_norm_eps",
        prefix="language_model.",
        # transformers writes the MLP of a dense layer as if it had experts
        renamed=((r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj."),),
    ),
    "fla": Naming(
        attention="attn_res",
        mlp="mlp_res",
        output="res",
        block_key="attnres_block_size",
        unit="sublayers_per_block",
        eps_key="norm_eps",
        renamed=(
            (r"\.embed_tokens\.", ".embeddings."),
            (r"\.input_layernorm\.", ".attn_norm."),
            (r"\.post_attention_layernorm\.", ".mlp_norm."),
            (r"\.self_attn\.", ".attn."),
        ),
    ),
    "torchtitan": Naming(
        attention="attention_res",
        mlp="ffn_res",
        output="output_res",
        block_key="attn_res_block_size",
        unit="layers_per_block",
        eps_key="eps",  # of the config of a reader's norm
        one_eps=False,
        owns_first=False,
        renamed=(
            (r"^model\.embed_tokens\.", "tok_embeddings."),
            (r"^model\.", ""),
            (r"\.input_layernorm\.", ".attention_norm."),
            (r"\.post_attention_layernorm\.", ".ffn_norm."),
            (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
            (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
            (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
        ),
    ),
}


def naming_of(names: str) -> Naming:
    """The table of a project; ValueError for one that has none."""
    if names.startswith("inkling"):
        raise ValueError(WHY_NO_INKLING)
    if names not in NAMINGS:
        raise ValueError(f"no names {names!r}; there are: ours, {', '.join(NAMINGS)}")
    return NAMINGS[names]


def check_names(tensors: Iterable[str], names: str) -> None:
    """ValueError where readers among the names of tensors are called as in another project."""
    if names != "ours":
        naming_of(names)
    found: set[str] = set()
    for name in tensors:
        if INKLING.search(name):
            raise ValueError(f"{WHY_NO_INKLING}; found {name}")
        found |= _projects_with(name)
    if found and names not in found:
        known = " or ".join(sorted(found))
        raise ValueError(f"the readers are called as in {known}, not as in {names}")


def is_reader(name: str, names: str) -> bool:
    """Whether a tensor is called like one of a reader."""
    if names == "ours":
        return OUR_READER.fullmatch(name) is not None
    return _reader_in(name) in NAMINGS[names].readers


def _reader_in(name: str) -> str | None:
    """`mlp_res` of `...layers.3.mlp_res_proj.weight`, or what is in its place."""
    found = THEIR_PARAMETER.search(name)
    return found and found[1]


def _projects_with(name: str) -> set[str]:
    if is_reader(name, "ours"):
        return {"ours"}
    reader = _reader_in(name)
    # the readers before an MLP are called alike in two of them
    return {key for key, x in NAMINGS.items() if reader in (x.attention, x.output)}


def residual_from_named(config: Mapping[str, Any], names: str) -> ResidualConfig:
    """The residual method that a config of another project asks for.

    Args:
        config: as JSON, with a block size where its model attends over depth; a `text_config` in it
            is taken. For torchtitan `attn_res_block_size` and `eps` of a reader's norm.
        names: "kimi_k3", "fla" or "torchtitan".

    Raises:
        ValueError: an unknown name; a size that is none there; no epsilon; a config of another
            project.
    """
    naming = naming_of(names)
    config = config.get("text_config") or config
    _check_block_key(config, naming, names)
    size = config.get(naming.block_key)
    if size is None:
        return StandardConfig()
    check_count(naming.block_key, size)
    if naming.unit == "sublayers_per_block":
        _check_sublayers(size, naming)
    if naming.eps_key not in config:
        raise ValueError(f"{names}: the config has no {naming.eps_key}")
    return AttnResConfig(**{naming.unit: size}, eps=config[naming.eps_key])


def residual_to_named(config: AttnResCausalLMConfig, names: str) -> dict[str, Any]:
    """Block size and epsilon as a config of another project has them; size None is no AttnRes.

    Raises:
        ValueError: an unknown name; a residual, a layout or an epsilon that has no words there.
    """
    naming = naming_of(names)
    residual = config.residual_config
    if isinstance(residual, StandardConfig):
        return {naming.block_key: None}
    settings = set(config.residual_state) - {"method", "layout", "eps"}
    if not isinstance(residual, AttnResConfig | TwoPhaseConfig) or settings:
        raise ValueError(f"{names} has no words for the residual {config.residual_state}")
    _check_eps(config, residual.eps, naming, names)
    size = _size(residual.layout(config.n_sublayers), config, naming)
    return {naming.block_key: size, naming.eps_key: residual.eps}


def _check_block_key(config: Mapping[str, Any], naming: Naming, names: str) -> None:
    if INKLING_BLOCK_KEY in config:
        raise ValueError(f"{WHY_NO_INKLING}; found {INKLING_BLOCK_KEY}")
    others = {other.block_key for other in NAMINGS.values()} - {naming.block_key}
    for key in others & config.keys():
        raise ValueError(f"a config of {names} has {naming.block_key}, this one has {key}")


def _check_sublayers(size: int, naming: Naming) -> None:
    if size != 1 and size % SUBLAYERS_PER_LAYER:
        raise ValueError(f"{naming.block_key} is 1 or even (in sublayers), got {size}")


def _check_eps(config: AttnResCausalLMConfig, eps: float, naming: Naming, names: str) -> None:
    of_norms = getattr(config.text_config, "rms_norm_eps", None)
    if naming.one_eps and eps != of_norms:
        raise ValueError(
            f"{names} has one {naming.eps_key} for all norms: the readers have eps={eps}, the "
            f"model rms_norm_eps={of_norms}"
        )


def _size(layout: BlockLayout, config: AttnResCausalLMConfig, naming: Naming) -> int:
    size = layout.sizes[0]
    if layout.n_sublayers != SUBLAYERS_PER_LAYER * config.text_config.num_hidden_layers:
        raise ValueError("their layers have two sublayers, attention and MLP, each with a reader")
    if layout != BlockLayout.of(layout.n_sublayers, sublayers_per_block=size):
        raise ValueError(
            f"{naming.block_key} is one size (a last block may be shorter), not {layout.sizes}"
        )
    if naming.unit == "sublayers_per_block":
        _check_sublayers(size, naming)
        return size
    if size % SUBLAYERS_PER_LAYER:
        raise ValueError(
            f"{naming.block_key} counts layers of two sublayers, a block here has {size} sublayers"
        )
    return size // SUBLAYERS_PER_LAYER
