"""The command that plans a pipeline."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from attnres.arguments import flat, parse
from attnres.cli.costs import BYTES
from attnres.cli.tables import show
from attnres.distributed import (
    Machine,
    PipelinePlan,
    Timeline,
    even_cuts,
    plan_pipeline,
    schedule,
    simulate,
)
from attnres.distributed.plan import Keep
from attnres.distributed.tables import KEEP_IN_WORDS, hop_table, step_table
from attnres.layout import SUBLAYERS_PER_LAYER, check_count
from attnres.residual import AttnResConfig

MICROBATCHES_PER_STAGE = 4


@dataclass(frozen=True)
class Blocks:
    sublayers_per_block: int | None = None
    """block size as the paper and FLA count it"""
    layers_per_block: int | None = None
    """block size as Kimi K3 and Megatron count it"""
    n_blocks: int | None = None
    """exactly so many blocks; without any of the three: Full AttnRes"""


@dataclass(frozen=True)
class Assumed:
    """Of the model and the machine; nothing is measured."""

    microbatches: int | None = None
    """of a step of the optimiser; without it 4 for each stage"""
    tokens: int = 4096
    """of a micro-batch"""
    dim: int = 4096
    """width of the hidden state"""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """of the sources and of their gradients"""
    sublayer_ms: float = 1.0
    """forward of one sublayer and one micro-batch"""
    backward_ratio: float = 2.0
    """time of a backward, in forwards"""
    link_gb_per_s: float = 25.0
    """from one rank to the next, 10^9 bytes a second in one direction"""
    latency_us: float = 20.0
    """of a message"""


def pipeline_plan(arguments: list[str]) -> None:
    """Plan what each hop of a pipeline sends and each rank keeps. Nothing is run.

    attnres pipeline-plan --layers 27 --layers-per-block 3 -P 4 -V 2

    The model is cut into P times V chunks, and rank r runs chunks r, r + P, r + 2P and so on. Each
    chunk reads all blocks finished before it, so a hop sends what the next rank lacks: everything,
    where nothing is kept; what is newer, where a rank keeps what came (the cross-stage caching of
    the paper); and nothing of its own, where it keeps that too. A cut inside a block sends its
    partial sum. The timeline is simulated for a schedule of torch, under times and a link speed
    that you give.
    """
    import tyro

    @dataclass(frozen=True)
    class PipelinePlanArguments:
        layers: int
        """transformer layers, of two sublayers each: attention and MLP"""
        stages: Annotated[int, tyro.conf.arg(aliases=["-P"])]
        """ranks of the pipeline"""
        virtual_stages: Annotated[int, tyro.conf.arg(aliases=["-V"])] = 1
        """chunks of layers that each rank holds"""
        blocks: Annotated[Blocks, flat()] = Blocks()
        cuts: tuple[int, ...] = ()
        """depth of the first sublayer of each chunk but the first; without it as even as can be"""
        whole_layers: bool = False
        """never cut between the attention and the MLP of a layer"""
        schedule: Literal["gpipe", "1f1b", "interleaved", "looped"] | None = None
        """torch's, without it 1f1b, or interleaved where ranks hold several chunks"""
        assumed: Annotated[Assumed, flat()] = Assumed()
        json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """write the plans and what was simulated there"""
        figure: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """draw the timelines there, as .svg or .png"""

    chosen = parse(PipelinePlanArguments, "pipeline-plan", pipeline_plan, arguments)
    name = chosen.schedule or ("1f1b" if chosen.virtual_stages == 1 else "interleaved")
    plans = _plans(chosen)
    timelines = _timelines(plans, name, chosen.assumed)
    show([hop_table(plans), step_table(timelines, name)])
    if chosen.json is not None:
        found = {"schedule": name, "assumed": asdict(chosen.assumed)}
        found |= {keep: _found(each) for keep, each in timelines.items()}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if chosen.figure is not None:
        from attnres.analysis.canvas import LIGHT, save
        from attnres.analysis.pipelines import timeline_figure

        shown = {KEEP_IN_WORDS[keep]: timelines[keep] for keep in ("nothing", "all")}
        save(timeline_figure(shown, LIGHT), chosen.figure)


def _plans(chosen: Any) -> dict[Keep, PipelinePlan]:
    for name in ("layers", "stages", "virtual_stages"):
        check_count(name, getattr(chosen, name))
    n_sublayers = chosen.layers * SUBLAYERS_PER_LAYER
    layout = AttnResConfig(**asdict(chosen.blocks)).layout(n_sublayers)
    n_chunks = chosen.stages * chosen.virtual_stages
    if chosen.cuts and chosen.whole_layers:
        raise ValueError("--whole-layers chooses the cuts, so --cuts cannot be given besides")
    cuts = chosen.cuts or even_cuts(n_sublayers, n_chunks, whole_layers=chosen.whole_layers)
    return {
        keep: plan_pipeline(layout, chosen.stages, chosen.virtual_stages, cuts, keep)
        for keep in KEEP_IN_WORDS
    }


def _timelines(
    plans: dict[Keep, PipelinePlan], name: str, assumed: Assumed
) -> dict[Keep, Timeline]:
    plan = plans["all"]
    n_microbatches = assumed.microbatches
    if n_microbatches is None:
        n_microbatches = MICROBATCHES_PER_STAGE * plan.n_stages
    for count in ("tokens", "dim"):
        check_count(count, getattr(assumed, count))
    machine = Machine(
        sublayer_s=assumed.sublayer_ms / 1e3,
        backward_ratio=assumed.backward_ratio,
        bytes_per_s=assumed.link_gb_per_s * 1e9,
        latency_s=assumed.latency_us / 1e6,
    )
    orders = schedule(name, plan.n_stages, plan.n_virtual, n_microbatches)
    vector_bytes = assumed.tokens * assumed.dim * BYTES[assumed.dtype]
    return {keep: simulate(each, orders, vector_bytes, machine) for keep, each in plans.items()}


def _found(timeline: Timeline) -> dict[str, Any]:
    """A plan and its timeline as JSON."""
    plan = timeline.plan
    return {
        "chunks": [asdict(chunk) for chunk in plan.chunks],
        "hops": [{"sender": hop.sender, "tensors": hop.names} for hop in plan.hops],
        "copies": [
            asdict(copy) | {"forward_end": copy.forward_end, "backward_end": copy.backward_end}
            for copy in plan.copies
        ],
        "vectors_sent": plan.n_sent,
        "blocks_sent": plan.blocks_sent(),
        "bytes_by_hop": timeline.bytes_by_hop,
        "total_s": timeline.total_s,
        "idle_share": timeline.idle_share,
        "peak_source_bytes": timeline.peak_source_bytes,
        "peak_gradient_bytes": timeline.peak_gradient_bytes,
        "peak_bytes": timeline.peak_bytes,
    }
