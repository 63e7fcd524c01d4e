"""The command that says what a residual method costs."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from attnres.arguments import flat, parse
from attnres.cli.tables import show
from attnres.cost import (
    Advice,
    Counted,
    Sizes,
    count,
    decoder_sizes,
    kimi_k3,
    method_costs,
    recommend_for_bytes,
    recommend_for_traffic,
)
from attnres.cost.cluster import Cluster, cluster_table, needs
from attnres.cost.tables import (
    Run,
    Table,
    memory_table,
    methods_table,
    model_table,
    pipeline_table,
    scheme_table,
)
from attnres.residual import AttnResConfig, ResidualConfig, residual_to_json

KIMI_K3 = "kimi_k3"
N_BLOCKS = 8  # in the table of schemes, of a method without blocks: the paper's
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Decoder:
    layers: int = 64
    """transformer layers, of two sublayers each: attention and MLP"""
    dim: int = 7168
    """width of the hidden state"""
    heads: int = 56
    """of attention"""
    kv_heads: int = 8
    """heads of keys and values"""
    mlp_dim: int = 18432
    """width of the MLP"""
    vocab_size: int = 163840
    """tokens"""


@dataclass(frozen=True)
class Use:
    tokens: int = 131072
    """at once: of a forward pass in training, of a prompt in prefill"""
    seq_len: int = 4096
    """tokens of a sequence, for the FLOPs of attention"""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """of the sources"""
    shards: int = 8
    """devices that a prompt is cut over"""
    chunk: int = 16384
    """tokens prefilled at once; 0 is all"""
    stages: int = 8
    """of a pipeline"""
    virtual: int = 4
    """chunks of layers that each stage holds"""
    gpus: tuple[int, ...] = ()
    """what a training run needs of each of so many GPUs, in --stages, and sends"""


@dataclass(frozen=True)
class Budget:
    budget_gb: float = 0.0
    """recommend the most blocks whose sources take so many GB (10^9 bytes) for --tokens"""
    budget_percent: float = 0.0
    """recommend the most blocks that move so many percent of what the standard residual moves"""


def cost(arguments: list[str]) -> None:
    """Say what a residual method costs, and which layout fits a budget. Nothing is trained.

    attnres cost MODEL --residual attn_res:n_blocks=8

    MODEL is a folder of a transformers model, its config.json, a recipe or kimi_k3;
    without one, the sizes are those of the command line. Parameters, FLOPs, memory and messages are
    counted from the model and the method on tensors without values. With --methods all residual
    methods stand beside each other, and what they move and keep is measured on this machine's CPU
    besides.
    """
    import tyro

    @dataclass(frozen=True)
    class Cost:
        model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = ""
        """a local folder, a config.json, the name of a recipe, or kimi_k3"""
        residual: ResidualConfig = field(default_factory=lambda: AttnResConfig(n_blocks=8))
        """what is counted; a converted model has its own"""
        methods: bool = False
        """a table of all residual methods instead"""
        decoder: Annotated[Decoder, flat()] = Decoder()
        use: Annotated[Use, flat()] = Use()
        budget: Annotated[Budget, flat()] = Budget()
        json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """write all figures there too"""

    chosen = parse(Cost, "cost", cost, arguments)
    sizes, own, vocab_size = _sizes(chosen)
    residual = own or chosen.residual
    if chosen.methods:
        costs = method_costs(
            sizes.dim, sizes.n_sublayers, sublayers_per_layer=sizes.n_sublayers // sizes.n_layers
        )
        tables = [methods_table(costs, sizes.n_sublayers, sizes.dim)]
        found: dict[str, Any] = {"methods": [asdict(each) for each in costs]}
    else:
        counted = count(residual, sizes.dim, sizes.n_sublayers)
        tables = _tables(sizes, residual, counted, chosen.use)
        if chosen.use.gpus:
            tables.append(_on_gpus(sizes, residual, counted, chosen.use, vocab_size))
        found = {"residual": residual_to_json(residual), "counted": asdict(counted)}
    advice = _advice(sizes, chosen.use, chosen.budget)
    show(tables)
    for each in advice.values():
        print(f"recommended: n_blocks={each.layout.n_blocks}. {each.reason}")
    if chosen.json is not None:
        found |= {"sizes": asdict(sizes), "tables": [asdict(table) for table in tables]}
        found |= {"recommended": {name: asdict(each) for name, each in advice.items()}}
        text = json.dumps(found, indent=1, default=str)
        chosen.json.write_text(text + "\n", encoding="utf-8")


def _sizes(chosen: Any) -> tuple[Sizes, ResidualConfig | None, int]:
    """Of the model, its own residual, and its vocabulary."""
    if chosen.model == KIMI_K3:
        blocks = AttnResConfig(layers_per_block=kimi_k3.LAYERS_PER_BLOCK)
        return kimi_k3.kimi_k3_sizes(), blocks, kimi_k3.VOCAB_SIZE
    if chosen.model:
        from attnres.models.sizes import read_config_of, sizes_of
        from attnres.train.recipes import RECIPES

        if chosen.model in RECIPES and not Path(chosen.model).exists():
            recipe = RECIPES[chosen.model]()
            text = recipe.model.text_config(recipe.data.vocab_size, recipe.seq_len)
            return sizes_of(text), recipe.model.residual, text.vocab_size
        text, residual = read_config_of(chosen.model)
        return sizes_of(text), residual, text.vocab_size
    given: Decoder = chosen.decoder
    sizes = decoder_sizes(
        dim=given.dim,
        n_layers=given.layers,
        n_heads=given.heads,
        n_kv_heads=given.kv_heads,
        mlp_dim=given.mlp_dim,
        vocab_size=given.vocab_size,
    )
    return sizes, None, given.vocab_size


def _tables(sizes: Sizes, residual: ResidualConfig, counted: Counted, use: Use) -> list[Table]:
    run = Run(
        n_tokens=use.tokens,
        seq_len=use.seq_len,
        bytes_per_number=BYTES[use.dtype],
        n_shards=use.shards,
        chunk_tokens=use.chunk or None,
    )
    n_blocks = _n_blocks(residual, sizes.n_sublayers)
    tables = [
        scheme_table(sizes.n_sublayers, n_blocks or min(N_BLOCKS, sizes.n_sublayers)),
        model_table(sizes, counted, run),
        memory_table(sizes, counted, n_blocks, run),
    ]
    return tables + ([pipeline_table(n_blocks, use.stages, use.virtual)] if n_blocks else [])


def _on_gpus(
    sizes: Sizes, residual: ResidualConfig, counted: Counted, use: Use, vocab_size: int
) -> Table:
    n_blocks = _n_blocks(residual, sizes.n_sublayers)
    found = {}
    for n_gpus in use.gpus:
        cluster = Cluster(
            n_gpus=n_gpus, n_stages=use.stages, n_virtual=use.virtual, seq_len=use.seq_len,
            vocab_size=vocab_size,
        )  # fmt: skip
        n_params = sizes.n_params + counted.n_params
        found[n_gpus] = needs(sizes, counted, cluster, n_blocks, n_params)
    words = f"{use.stages} stages of {use.virtual} chunks, sequences of {use.seq_len:,} tokens"
    return cluster_table(found, words)


def _n_blocks(residual: ResidualConfig, n_sublayers: int) -> int | None:
    """Of the layout; None where a method has none."""
    layout = residual.describe(n_sublayers).get("layout")
    return len(layout["sizes"]) if layout else None


def _advice(sizes: Sizes, use: Use, budget: Budget) -> dict[str, Advice]:
    """What fits each budget that is given."""
    advice = {}
    if budget.budget_gb:
        advice["bytes"] = recommend_for_bytes(
            sizes.n_sublayers, sizes.dim, use.tokens, budget.budget_gb * 1e9, BYTES[use.dtype]
        )
    if budget.budget_percent:
        advice["traffic"] = recommend_for_traffic(sizes.n_sublayers, budget.budget_percent)
    return advice
