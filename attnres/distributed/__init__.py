"""Training past one process: what is sent and kept is planned before anything runs."""

from typing import TYPE_CHECKING, Any

from attnres.distributed.chunks import Chunk, cut, even_cuts
from attnres.distributed.plan import Hop, PipelinePlan, plan_pipeline
from attnres.distributed.schedules import SCHEDULES, schedule
from attnres.distributed.simulation import Machine, simulate
from attnres.distributed.timeline import Timeline

if TYPE_CHECKING:
    from attnres.distributed.failures import PipelineError
    from attnres.distributed.pipeline import Pipeline
    from attnres.distributed.planned import plan_for

__all__ = [
    "SCHEDULES",
    "Chunk",
    "Hop",
    "Machine",
    "Pipeline",
    "PipelineError",
    "PipelinePlan",
    "Timeline",
    "cut",
    "even_cuts",
    "plan_for",
    "plan_pipeline",
    "schedule",
    "simulate",
]
LATE = {  # what runs takes transformers and torch.distributed, what is planned does not
    "Pipeline": "pipeline",
    "PipelineError": "failures",
    "plan_for": "planned",
}


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"attnres.distributed.{LATE[name]}"), name)
