"""How one of many processes ends on an error: what all of them met is said once, with a rank."""

import hashlib
import os
from typing import NoReturn

from attnres.arguments import fail

LOST = ("gloo", "NCCL", "Connection closed", "Connection reset", "timed out", "Timed out")
STORE_TIMEOUT_S = 5


def is_one_of_many() -> bool:
    """Whether a launcher started this process and others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0" or not is_one_of_many()


def fail_once(message: str) -> NoReturn:
    """As `attnres.arguments.fail`; of processes with the same message one alone prints it."""
    if not is_one_of_many():
        fail(message)
    _fail_first(message, f"rank {os.environ['RANK']}: {message}")


def fail_if_lost(error: RuntimeError) -> None:
    """End where the error is that another process is gone or silent; else return."""
    from attnres.distributed import PipelineError

    if isinstance(error, PipelineError):
        _fail_first(str(error), str(error))  # which names a rank
    if is_one_of_many() and any(word in str(error) for word in LOST):
        cause = str(error).strip().splitlines()[0]
        words = f"rank {os.environ['RANK']}: another process ended or did not answer: {cause}"
        _fail_first("lost", words)


def _fail_first(message: str, words: str) -> NoReturn:
    if _was_said(message):
        raise SystemExit(2)
    fail(words)


def _was_said(message: str) -> bool:
    """Whether another process has said it; the launcher's store counts."""
    from datetime import timedelta

    import torch.distributed as dist

    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a store outlives its processes
    key = f"attnres/said/{attempt}/{hashlib.sha256(message.encode()).hexdigest()}"
    try:
        timeout = timedelta(seconds=STORE_TIMEOUT_S)
        store = dist.TCPStore(  # type: ignore[attr-defined]  not in its stubs
            host, int(port), is_master=False, timeout=timeout
        )
        return store.add(key, 1) > 1
    except (RuntimeError, ValueError):  # no store, or it is gone with the first process
        return False
