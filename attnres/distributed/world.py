"""The processes of one run: how they meet, whether they agree, and which of them speaks.

A launcher (torchrun, Slurm, Kubernetes) starts the processes and tells each its rank by environment
variables. Facts and errors travel as objects over the group's CPU backend, before any tensor does.
"""

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

Value = TypeVar("Value")
Failure = tuple[type[Exception], str]
Attempt = tuple[int, Failure | None]  # a rank, and what it has failed with
PACKAGE = Path(__file__).parents[1]


def launched_ranks() -> int:
    """How many processes the launcher started; 1 where there is no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(device_type: str, timeout_s: float) -> Iterator[None]:
    """Inside, the launched processes are one group; a single process has none.

    Args:
        device_type: "cuda" takes NCCL for tensors there; all else goes over gloo.
        timeout_s: after which a process that waits for another gives up with an error.
    """
    if launched_ranks() == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, timeout=timeout, **_meeting(timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def _meeting(timeout: datetime.timedelta) -> dict[str, Any]:
    """Where the processes find each other: torchrun's store keeps the addresses of dead ones.

    Launchers of several machines count restarts apart, so there the store must be a new one.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        return {}
    store, own_rank, size = next(rendezvous("env://", timeout=timeout))
    found = dist.PrefixStore(f"attempt-{attempt}", store)  # type: ignore[attr-defined]  not in its stubs
    return {"store": found, "rank": own_rank, "world_size": size}


def n_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def own_device(name: str) -> str:
    """The device of this process where all get the same name: the local rank's GPU for "cuda"."""
    is_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    if n_ranks() == 1 or not is_cuda:
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', rank() % max(1, torch.cuda.device_count())))}"


def mesh_of(device_type: str, n_stages: int, timeout_s: float) -> DeviceMesh:
    """All ranks as ("pipeline", "data"): neighbours share a stage and differ in their data.

    Raises:
        ValueError: a number of processes that is no multiple of the stages.
    """
    check_n_ranks(n_stages)
    timeout = datetime.timedelta(seconds=timeout_s)  # else a group of a mesh waits half an hour
    ranks = torch.arange(n_ranks()).view(n_stages, -1)
    pipeline, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist(), timeout=timeout)
    data, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout)
    groups = cast(Any, [pipeline, data])
    return DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=("pipeline", "data"))


def check_n_ranks(n_stages: int) -> None:
    """ValueError, with a command that would do, where the stages do not divide the processes."""
    if n_ranks() % n_stages:
        raise ValueError(
            f"pipeline={n_stages} takes {n_stages} processes or a multiple of that, and there "
            f"{'is 1' if n_ranks() == 1 else f'are {n_ranks()}'}: "
            f"torchrun --nproc-per-node {n_stages} -m attnres train RECIPE --pipeline {n_stages}"
        )


def check_alike(facts: dict[str, Any], group: Any = None) -> None:
    """ValueError, on every rank of a group the same, where one has another value than its first."""
    first, *others = gathered({name: _shown(value) for name, value in facts.items()}, group)
    for other, theirs in enumerate(others, 1):
        for name in dict.fromkeys((*first, *theirs)):
            if first.get(name) != theirs.get(name):
                raise ValueError(
                    f"the processes differ: {name} is {first.get(name)} on rank 0 and "
                    f"{theirs.get(name)} on rank {other}"
                )


def _shown(value: Any) -> str:
    """A value as JSON, or a digest of that where it is long."""
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) < 60 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def together(make: Callable[[], Value], *groups: Any) -> Value:
    """What `make` returns here, once it has on every rank; else the first rank's error on all.

    All ranks, or those of the groups, such as the row and the column of this rank in a mesh.
    """
    if n_ranks() == 1:
        return make()
    value, failure = _attempt(make)
    found = (rank(), failure), True
    for group in groups or (None,):
        found = _first_failure(gathered(found, group))
    (place, failure), are_alike = found
    if failure is None:
        return cast(Value, value)
    kind, text = failure
    raise kind(text if are_alike else f"rank {place}: {text}")


def _first_failure(found: Sequence[tuple[Attempt, bool]]) -> tuple[Attempt, bool]:
    """The first rank's failure among what ranks found, and whether it is that of all."""
    first = next((attempt for attempt, _ in found if attempt[1] is not None), found[0][0])
    return first, all(alike and attempt[1] == first[1] for attempt, alike in found)


def from_first(make: Callable[[], Value]) -> Value:
    """What `make` returns on rank 0, on every rank; its error is raised on every rank."""
    if n_ranks() == 1:
        return make()
    value, failure = gathered(_attempt(make) if rank() == 0 else None)[0] or (None, None)
    if failure is not None:
        kind, text = failure
        raise kind(text)
    return cast(Value, value)


def source_digest() -> str:
    """A digest of this package's Python code, which ranks must have alike."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _attempt(make: Callable[[], Value]) -> tuple[Value | None, Failure | None]:
    try:
        return make(), None
    except OSError as error:
        return None, (OSError, str(error))
    except ValueError as error:
        return None, (ValueError, str(error))


def gathered(value: Value, group: Any = None) -> list[Value]:
    """Of every rank of a group, or of all there are, in order."""
    if n_ranks() == 1:
        return [value]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found
