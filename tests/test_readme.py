"""Every Python example of the README runs, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_example_has_at_most_twelve_lines_of_code():
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) - 1 <= 12  # the last line only prints a shape


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example):
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
