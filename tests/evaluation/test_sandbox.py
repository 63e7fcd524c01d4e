"""Programs that a model wrote: what counts as passing, and what they may not do."""

import time
from pathlib import Path

import pytest

from attnres.evaluation.sandbox import passes


@pytest.mark.parametrize(
    ("program", "is_right"),
    [
        ("assert 1 + 1 == 2", True),
        ("def f(x):\n    return x\n\nassert f(1) == 1\nprint('done')", True),
        ("assert 1 + 1 == 3", False),
        ("def broken(:", False),
        ("raise SystemExit(0)", False),
        ("import os; os._exit(0)", False),
        ("import sys; sys.stdout.close()", False),
        ("input()", False),
    ],
)
def test_a_program_passes_that_reaches_its_end(program, is_right):
    assert passes(program) is is_right


@pytest.mark.parametrize(
    "program",
    [
        "import mmap; mmap.mmap(-1, 4 << 30)",
        "open('big', 'wb').write(bytes(8 << 20))",
        "files = [open('/dev/null') for _ in range(100)]",
    ],
)
def test_memory_and_files_are_limited(program):
    assert not passes(program)


@pytest.mark.slow
def test_what_does_not_end_is_ended_with_all_that_it_started(tmp_path):
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
    assert not passes(program + "while True:\n    pass", seconds=2)
    time.sleep(4)
    assert not mark.exists()


def test_a_program_sees_an_empty_folder_and_none_of_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of ours")
    program = "import os\nassert os.listdir() == []\nassert 'SECRET' not in os.environ"
    assert passes(program)
    assert passes("open('own', 'w').write('x')")
    assert not Path("own").exists()
