"""The plan of a model, and what of it cannot run."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from attnres.distributed.carried import has_blocks
from attnres.distributed.plan import Keep, PipelinePlan, plan_pipeline
from attnres.distributed.schedules import schedule as order_of
from attnres.layout import BlockLayout, check_count
from attnres.models import AttnResCausalLMConfig


def plan_for(
    config: AttnResCausalLMConfig,
    n_stages: int,
    n_virtual: int = 1,
    cuts: Sequence[int] | None = None,
    keep: Keep = "all",
) -> PipelinePlan:
    """The plan of a model; arguments and errors as of `plan_pipeline`.

    A method without blocks, or that forgets some, sends its whole state at each hop, and keeps
    nothing: of its plan only the cuts count.
    """
    return plan_pipeline(_layout(config), n_stages, n_virtual, cuts, keep)


def check(
    config: AttnResCausalLMConfig,
    plan: PipelinePlan,
    schedule: str,
    n_microbatches: int,
    shape_BT: tuple[int, int],
    group: Any,
    shard_over: DeviceMesh | None,
) -> None:
    """ValueError for what can be seen on one rank; arguments as of `Pipeline`."""
    for name, value in zip(("batch_size", "seq_len"), shape_BT, strict=True):
        check_count(name, value)
    order_of(schedule, plan.n_stages, plan.n_virtual, n_microbatches)
    if plan.n_stages < 2:
        raise ValueError("a pipeline has two stages at least; one process needs none")
    if plan.layout != _layout(config):
        raise ValueError(
            f"the plan is of blocks of {list(plan.layout.sizes)} sublayers, the model has "
            f"{list(_layout(config).sizes)}"
        )
    if getattr(config.text_config, "output_router_logits", False):
        raise ValueError(
            "output_router_logits=True adds a loss that is no sum over layers, so no stage can "
            "tell its part of it"
        )
    if not dist.is_initialized():
        raise ValueError("a pipeline needs torch.distributed: call init_process_group, or torchrun")
    if dist.get_world_size(group) != plan.n_stages:
        raise ValueError(
            f"a pipeline of {plan.n_stages} stages needs a group of as many ranks, got "
            f"{dist.get_world_size(group)}"
        )
    if shard_over is not None and shard_over.ndim != 1:
        raise ValueError(
            f"shard_over must be a mesh of one dimension, got {shard_over.ndim}: slice it"
        )


def _layout(config: AttnResCausalLMConfig) -> BlockLayout:
    """Of its blocks, where it has some that go by a plan."""
    with torch.device("meta"):
        dim = config.text_config.hidden_size
        residual: Any = config.residual_config.build(dim, config.n_sublayers)
    return residual.layout if has_blocks(residual) else BlockLayout.full(config.n_sublayers)
