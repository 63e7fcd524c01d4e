"""Orders are those of torch's runners; what cannot be run is refused."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from attnres.distributed import SCHEDULES, schedule
from attnres.distributed.schedules import Step

KINDS: dict[str, Any] = {"F": "forward", "B": "backward"}


@pytest.fixture
def pipelining() -> Iterator[Any]:
    """The module, and afterwards no process group."""
    from torch.distributed import pipelining  # seconds

    yield pipelining
    dist.destroy_process_group()


def join(rank: int, n_ranks: int) -> None:
    """Be one rank of a group that reaches nobody."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=rank, world_size=n_ranks, store=FakeStore())


@pytest.mark.parametrize(
    ("name", "runner", "sizes"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", (4, 2, 8)),
        ("interleaved", "ScheduleInterleaved1F1B", (4, 2, 10)),
        ("interleaved", "ScheduleInterleaved1F1B", (4, 3, 3)),
        ("interleaved", "ScheduleInterleaved1F1B", (2, 4, 4)),
        ("looped", "ScheduleLoopedBFS", (3, 3, 4)),
    ],
)
def test_the_order_is_what_the_runner_plans(pipelining, name, runner, sizes):
    n_stages, n_virtual, n_microbatches = sizes
    join(0, n_stages)
    stages = [
        pipelining.PipelineStage(nn.Identity(), i, n_stages * n_virtual, torch.device("cpu"))
        for i in range(0, n_stages * n_virtual, n_stages)
    ]
    planned = getattr(pipelining, runner)(stages, n_microbatches).pipeline_order
    for rank, order in enumerate(schedule(name, *sizes)):
        kinds = [(each, each.computation_type.value) for each in planned[rank] if each is not None]
        steps = [(KINDS[kind], *each[::2][:2]) for each, kind in kinds if kind in KINDS]
        assert steps == [*order]


@pytest.mark.parametrize(
    ("name", "runner", "sizes"),
    [
        ("gpipe", "ScheduleGPipe", (3, 5)),
        ("1f1b", "Schedule1F1B", (4, 8)),
        ("1f1b", "Schedule1F1B", (3, 3)),
    ],
)
def test_the_order_is_what_the_runner_does(pipelining, monkeypatch, name, runner, sizes):
    n_stages, n_microbatches = sizes
    for rank, order in enumerate(schedule(name, n_stages, 1, n_microbatches)):
        join(rank, n_stages)
        stage = pipelining.PipelineStage(nn.Identity(), rank, n_stages, torch.device("cpu"))
        runs = getattr(pipelining, runner)(stage, n_microbatches)
        done: list[Step] = []
        monkeypatch.setattr(runs, "_initialize_stage", lambda *_: None)
        for way in ("fwd", "bwd"):
            for what in ("send", "recv"):
                monkeypatch.setattr(stage, f"get_{way}_{what}_ops", lambda _: [])
        for kind in ("forward", "backward"):
            note = partial(noted, done, kind, rank)
            monkeypatch.setattr(stage, f"{kind}_one_chunk", note)
        runs._step_microbatches([()] * n_microbatches)
        assert done == [*order]


def noted(done: list[Step], kind: Any, chunk: int, microbatch: int, *_: Any, **__: Any) -> None:
    done.append(Step(kind, chunk, microbatch))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 1, 4), (2, 1, 8), (5, 1, 5)])
def test_every_chunk_runs_each_micro_batch_forward_then_backward(name, sizes):
    n_microbatches = sizes[-1]
    for rank, order in enumerate(schedule(name, *sizes)):
        assert len(order) == 2 * n_microbatches
        for m in range(n_microbatches):
            forward, backward = Step("forward", rank, m), Step("backward", rank, m)
            assert order.index(forward) < order.index(backward)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zero", 2, 1, 4), "no schedule 'zero'; there are: gpipe, 1f1b, interleaved, looped"),
        (("gpipe", 2, 2, 4), "gpipe runs one chunk a rank, got n_virtual=2"),
        (("1f1b", 2, 3, 4), "1f1b runs one chunk a rank, got n_virtual=3"),
        (("1f1b", 3, 1, 2), "1f1b needs as many micro-batches as stages, 3, or more, got 2"),
        (("interleaved", 4, 2, 9), "must be divisible by 2"),
        (("looped", 2, 2, 0), "n_microbatches must be a positive integer, got 0"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        schedule(*arguments)
