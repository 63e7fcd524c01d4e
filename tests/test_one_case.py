"""One case of each test is drawn, the same for a seed."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from one_case import pytest_collection_modifyitems

NAMES = [f"test_a.py::test_x[{i}-[b]]" for i in range(9)] + [
    "test_a.py::test_y",
    "test_b.py::test_x",
]

CASES = """
import pytest

@pytest.mark.parametrize("i", [*range(3), *(pytest.param(i, marks=pytest.mark.slow)
                                            for i in range(3, 9))])
def test_x(i):
    pass
"""


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


def test_what_a_mark_leaves_out_is_not_drawn(tmp_path):
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: as here")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "one_case", "-p", "no:cacheprovider"]
    for seed in "cdf":  # each would draw a slow case of all nine
        options = ["-m", "not slow", "--one-case", seed]
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert "1 passed, 8 deselected" in done.stdout, done.stdout + done.stderr
