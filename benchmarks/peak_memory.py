"""Peak memory of one training step, in a process of its own.

Two figures. `allocated_bytes` is exact and the one the goal is judged by: the parameters, and the
most that PyTorch's CPU allocator held at once for the step (gradients included), from the profiler.
`resident_bytes` is the process's own peak (ru_maxrss), less what was resident before the model was
made: what the allocator and the libraries keep for themselves is in it, a kernel's scratch too, and
it differs by several per cent from process to process.
"""

import dataclasses
import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from llama_step import Size, Variant, build_model, step_case
from machine import VARIABLE
from rounds import Case
from torch.profiler import ProfilerActivity, profile

N_WARM_STEPS = 1


def peak_memory(variant: Variant | None, size: Size, checkpointing: bool) -> dict[str, int]:
    """Of a fresh process, with this process's threads and glibc's own allocator settings."""
    job = {
        "variant": variant and dataclasses.asdict(variant),
        "size": {**dataclasses.asdict(size), "dtype": str(size.dtype).removeprefix("torch.")},
        "checkpointing": checkpointing,
        "threads": torch.get_num_threads(),
    }
    command = [sys.executable, str(Path(__file__)), json.dumps(job)]
    environment = {**os.environ, VARIABLE: ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure(job: dict[str, Any]) -> dict[str, int]:
    torch.set_num_threads(job["threads"])
    size = Size(**{**job["size"], "dtype": getattr(torch, job["size"]["dtype"])})
    before = _resident_bytes_now()
    model = build_model(job["variant"] and Variant(**job["variant"]), size)
    if job["checkpointing"]:
        model.activation_checkpointing_enable({"use_reentrant": False})
    case = step_case(model, size)
    for _ in range(N_WARM_STEPS):
        case()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
    model.zero_grad(set_to_none=True)
    gc.collect()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    return {"allocated_bytes": parameters + most_allocated(case), "resident_bytes": peak - before}


def most_allocated(case: Case) -> int:
    """The most that was allocated at once beyond what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        case()
    profiler: Any = profiled.profiler
    events = [x for x in profiler.kineto_results.events() if x.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def _resident_bytes_now() -> int:
    n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return n_pages * resource.getpagesize()


if __name__ == "__main__":
    print(json.dumps(_measure(json.loads(sys.argv[1]))))
