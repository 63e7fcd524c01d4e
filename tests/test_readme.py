"""What the README promises by its form; that its blocks run is seen in tests/docs."""

import re
from pathlib import Path

from attnres.cli import COMMANDS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL))


def test_the_first_example_has_at_most_twelve_lines_of_code():
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) - 1 <= 12  # the last line only prints a shape


def test_its_commands_and_targets_exist():
    commands = re.findall(r"^attnres (\w+)", SHELL, re.MULTILINE)
    assert set(commands) <= set(COMMANDS)
    assert commands
    targets = re.findall(r"^make (\w+)", SHELL, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_every_file_it_links_to_exists_and_nothing_is_left_to_fill_in():
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)\)", prose)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert not re.search(r"^@\w+@$", TEXT, re.MULTILINE)
