"""The helper that runs ranks: results in order, the first failure, and no hanging group."""

import time

import pytest
import torch
import torch.distributed as dist
from processes import run_processes
from torch.multiprocessing.spawn import ProcessRaisedException

pytestmark = pytest.mark.dist


def _sum(rank, numbers):
    total = torch.tensor(numbers[rank])
    dist.all_reduce(total)
    return rank, total


def _fail(rank):
    if rank == 1:
        raise ValueError("rank 1 will not")
    dist.barrier()


def _hang(rank):
    if rank == 1:
        time.sleep(60)


def test_every_rank_returns_in_order():
    assert run_processes(_sum, 2, [3, 4]) == [(0, torch.tensor(7)), (1, torch.tensor(7))]


def test_the_first_failure_is_raised_with_its_words():
    with pytest.raises(ProcessRaisedException, match="rank 1 will not"):
        run_processes(_fail, 2)


def test_a_group_that_hangs_is_ended_and_named():
    with pytest.raises(TimeoutError, match=r"ranks \[.*1\] have not ended"):
        run_processes(_hang, 2, timeout_s=8)
