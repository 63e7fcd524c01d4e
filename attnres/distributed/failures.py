"""How a pipeline ends: the rank that fails first says why, and no other goes on waiting for it."""

import datetime
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from attnres.distributed import world

_numbers = count()  # of the notices of this process, the same on each rank


class PipelineError(RuntimeError):
    """A rank of the pipeline has failed; no rank can go on with this group."""


class Notice:
    """Where the first rank that fails says why.

    Gloo closes no connection when a group is left, so that the others would wait until their
    timeout; but a receive that times out does, and they fail at once.
    """

    def __init__(self, pipeline: Any, columns: Sequence[Any], others: Sequence[Any], device: Any):
        """What this rank leaves when something has failed.

        Args:
            pipeline: of all stages.
            columns: of ranks that share a stage; each has a pipeline of its own.
            others: of some ranks of the pipeline, as of those that share an embedding.
            device: of the tensors that go over them.
        """
        self.groups, self.device = [pipeline, *columns, *others], device
        first = dist.get_process_group_ranks(pipeline)[0]
        for group in columns:
            first = min(world.gathered(first, group))
        self.key = f"attnres/pipeline/{first}/{next(_numbers)}"

    def end(self, error: BaseException, doing: str) -> NoReturn:
        """Tell the others, leave the groups, and raise what has failed first.

        Args:
            error: that was raised here.
            doing: what this rank computed then; empty where it waited for another.
        """
        rank = dist.get_rank()
        is_own = doing and not _is_of_a_connection(error)
        own = f"rank {rank} failed in {doing}: {_first_line(error)}" if is_own else ""
        reason = self._told() or self._tell(own)
        self._close()
        lost = f"rank {rank} has lost a rank that said nothing: {_first_line(error)}"
        raise PipelineError(reason or lost) from error

    def _told(self) -> str:
        with suppress(Exception):  # the store may be gone with the rank that had it
            store = _store()
            return store.get(self.key).decode() if store.check([self.key]) else ""
        return ""

    def _tell(self, reason: str) -> str:
        with suppress(Exception):
            if reason:
                return _store().compare_set(self.key, "", reason).decode()
        return reason

    def _close(self) -> None:
        for group in self.groups:
            if self.device.type != "cpu":
                group.abort()
                continue
            for peer in dist.get_process_group_ranks(group):
                if peer != dist.get_rank():
                    with suppress(RuntimeError):
                        work = dist.irecv(torch.empty(1), src=peer, group=group, tag=2**20)
                        assert work is not None
                        work.wait(datetime.timedelta(milliseconds=1))


def _store() -> Any:
    """Of the job, which every rank reaches whatever its groups are in."""
    return dist.distributed_c10d._get_default_store()


def _is_of_a_connection(error: BaseException) -> bool:
    """Whether a collective has failed, inside what is computed: another rank is the cause."""
    error = _cause_of(error)
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def _first_line(error: BaseException) -> str:
    error = _cause_of(error)
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _cause_of(error: BaseException) -> BaseException:
    while error.__cause__ is not None:  # torch wraps what a stage raises
        error = error.__cause__
    return error
