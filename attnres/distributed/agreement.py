"""What ranks of a pipeline tell each other beside tensors: that they are alike, and failures."""

import datetime
from contextlib import suppress
from itertools import count
from typing import Any, NoReturn

import torch
import torch.distributed as dist

NOTICE = dist.distributed_c10d  # the module that has the job's store
_numbers = count()  # of the notices of this process, the same on each rank


class PipelineError(RuntimeError):
    """A rank of the pipeline has failed; no rank can go on with this group."""


class Notice:
    """Where the first rank that fails says why.

    Gloo closes no connection when a group is left, so that the others would wait until their
    timeout; but a receive that times out does, and they fail at once.
    """

    def __init__(self, group: Any, device: torch.device):
        self.group, self.device = group, device
        ranks = dist.get_process_group_ranks(group)
        self.key = f"attnres/pipeline/{ranks[0]}/{next(_numbers)}"

    def end(self, error: BaseException, doing: str) -> NoReturn:
        """Tell the others, leave the group, and raise what has failed first.

        Args:
            error: that was raised here.
            doing: what this rank computed then; empty where it waited for another.
        """
        rank = dist.get_rank(self.group)
        own = f"rank {rank} failed in {doing}: {_first_line(error)}" if doing else ""
        reason = self._told() or self._tell(own)
        self._close()
        lost = f"rank {rank} has lost a rank that said nothing: {_first_line(error)}"
        raise PipelineError(reason or lost) from error

    def _told(self) -> str:
        with suppress(Exception):  # the store may be gone with the rank that had it
            store = NOTICE._get_default_store()
            return store.get(self.key).decode() if store.check([self.key]) else ""
        return ""

    def _tell(self, reason: str) -> str:
        with suppress(Exception):
            if reason:
                return NOTICE._get_default_store().compare_set(self.key, "", reason).decode()
        return reason

    def _close(self) -> None:
        if self.device.type != "cpu":
            self.group.abort()
            return
        for peer in dist.get_process_group_ranks(self.group):
            if peer != dist.get_rank():
                with suppress(RuntimeError):
                    work = dist.irecv(torch.empty(1), src=peer, group=self.group, tag=2**20)
                    assert work is not None
                    work.wait(datetime.timedelta(milliseconds=1))


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:  # torch wraps what a stage raises
        error = error.__cause__
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
