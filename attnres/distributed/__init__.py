"""Training past one process: what is sent and kept is planned before anything runs."""

from attnres.distributed.chunks import Chunk, cut, even_cuts
from attnres.distributed.plan import Hop, PipelinePlan, plan_pipeline
from attnres.distributed.schedules import SCHEDULES, schedule
from attnres.distributed.simulation import Machine, simulate
from attnres.distributed.timeline import Timeline

__all__ = [
    "SCHEDULES",
    "Chunk",
    "Hop",
    "Machine",
    "PipelinePlan",
    "Timeline",
    "cut",
    "even_cuts",
    "plan_pipeline",
    "schedule",
    "simulate",
]
