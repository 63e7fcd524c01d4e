"""One case of each test is drawn, the same for a seed."""

from types import SimpleNamespace
from typing import Any

from one_case import pytest_collection_modifyitems

NAMES = [f"test_a.py::test_x[{i}-[b]]" for i in range(9)] + [
    "test_a.py::test_y",
    "test_b.py::test_x",
]


def run(seed: str | None) -> tuple[list[str], list[str]]:
    """The names of what is run, and of what is left out."""
    left: list[Any] = []
    items: list[Any] = [type("Item", (), {"nodeid": name})() for name in NAMES]
    hook = SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    config: Any = SimpleNamespace(getoption=lambda name: seed, hook=hook)
    pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items], [item.nodeid for item in left]


def test_each_test_has_one_case_the_same_for_a_seed():
    kept, left = run("a commit")
    assert kept[1:] == NAMES[9:]
    assert kept[0] in NAMES[:9]
    assert sorted(kept + left) == sorted(NAMES)
    assert run("a commit") == (kept, left)


def test_in_time_every_case_is_drawn():
    assert {run(str(seed))[0][0] for seed in range(100)} == set(NAMES[:9])


def test_without_a_seed_all_are_run():
    assert run(None) == (NAMES, [])
