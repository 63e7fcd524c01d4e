"""The runs of a study on a Ray cluster, a task each; its machines share folders and code."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from attnres.experiment.listed import Entry, run_entry
from attnres.experiment.results import Row

LOCAL = "local"  # in place of an address: a cluster of this machine alone
STORE_BYTES = 100 << 20  # for results, which are rows; the least that Ray takes is less
N_RETRIES = 3  # of a run whose machine is lost; it goes on from its checkpoint


def run_on_ray(
    entries: Sequence[Entry],
    address: str,
    n_processes: int,
    report: Callable[[Entry, Row | None], None],
) -> dict[str, str]:
    """All runs, first those that tune, then the others; why some were not possible, by run.

    Args:
        address: as `ray.init` takes it, or "local".
        n_processes: runs at once on this machine, where it is "local"; a cluster knows its own.
        report: called with each run that is done.

    Raises:
        ValueError: ray is not installed, or there is no cluster at the address.
    """
    ray = _started(address, n_processes)
    failed: dict[str, str] = {}
    try:
        job = ray.remote(num_cpus=1, max_retries=N_RETRIES)(_job)
        for phase in ("tuning", "final"):
            waiting = {job.remote(entry): entry for entry in entries if entry.phase == phase}
            while waiting:
                (done,), _ = ray.wait([*waiting])
                entry = waiting.pop(done)
                try:
                    report(entry, ray.get(done))
                except ray.exceptions.RayError as error:
                    failed[entry.words] = _reason(error)
    finally:
        ray.shutdown()
    return failed


def _job(entry: Entry) -> Row | None:
    import torch

    torch.set_num_threads(1)
    return run_entry(entry)


def _started(address: str, n_processes: int) -> Any:
    try:
        import ray  # pyright: ignore  an optional package
    except ModuleNotFoundError as error:
        raise ValueError("--ray needs ray: pip install 'attention-residuals[ray]'") from error
    where: dict[str, Any] = {"address": address}
    if address == LOCAL:
        where |= {"num_cpus": n_processes, "object_store_memory": STORE_BYTES}
        where |= {"include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of this kind where its own processes are late
        reason = " ".join(str(error).split())
        raise ValueError(f"no Ray cluster at {address!r}: {reason}") from error
    return ray


def _reason(error: Exception) -> str:
    """What the run itself raised, in a line."""
    cause = getattr(error, "cause", None) or error
    return " ".join(f"{type(cause).__name__}: {cause}".splitlines()[-1].split())
