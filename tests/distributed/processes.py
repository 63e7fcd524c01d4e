"""A function on every rank of a gloo group: what each returned, or one failure in limited time."""

import datetime
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessContext, start_processes

IMPORTED_ONCE = [  # by the process that every rank is a copy of: they take seconds, and no threads
    "attnres.distributed.pipeline",
    "attnres.train.parallel",
    "transformers.models.llama.modeling_llama",
]


def run_processes(
    function: Callable[..., Any], n_processes: int, *arguments: Any, timeout_s: float = 120
) -> list[Any]:
    """Call `function(rank, *arguments)` on each rank; what the ranks returned, in their order.

    The function is one of a module, since each process starts anew. The first rank that raises
    ends the others, and its traceback is raised here; so is a TimeoutError after `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        given = (folder, n_processes, timeout_s, function, arguments)
        multiprocessing.set_forkserver_preload(IMPORTED_ONCE)
        context = start_processes(
            _on_rank, given, nprocs=n_processes, join=False, start_method="forkserver"
        )
        assert context is not None
        _wait(context, timeout_s)
        found = [Path(folder, str(rank)) for rank in range(n_processes)]
        return [torch.load(file, weights_only=False) for file in found]


def _on_rank(
    rank: int,
    folder: str,
    n_processes: int,
    timeout_s: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=n_processes,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    torch.save(function(rank, *arguments), Path(folder, str(rank)))
    dist.barrier()
    dist.destroy_process_group()


def _wait(context: ProcessContext, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    try:
        while not context.join(timeout=0.5):
            if time.monotonic() > end:
                alive = [i for i, process in enumerate(context.processes) if process.is_alive()]
                raise TimeoutError(f"after {timeout_s} s ranks {alive} have not ended")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
