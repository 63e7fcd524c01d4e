"""How an implementation is loaded."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from attnres.ops.backends import LOADERS, Implementation, Loader, implementation, loaded


@pytest.fixture
def slow(monkeypatch) -> Iterator[list[int]]:
    """One entry each time that the implementation "slow" is loaded."""
    loads: list[int] = []

    def load():
        loads.append(len(loads))
        time.sleep(0.05)  # the other threads come meanwhile
        return cast(Implementation, SimpleNamespace())

    monkeypatch.setitem(LOADERS, "slow", Loader(load, str))
    yield loads
    del loaded["slow"]


def test_threads_that_read_first_at_once_load_an_implementation_once(slow):
    barrier = threading.Barrier(4, timeout=20)
    found: list[object] = []

    def run() -> None:
        barrier.wait()
        found.append(implementation("slow", torch.device("cpu")))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slow == [0]
    assert len(found) == 4
    assert len({id(x) for x in found}) == 1
