"""The code blocks of the README and of docs/, and what is said of each to the tests.

A mark is an HTML comment on the line before a block, which no reader sees:

    <!-- not run: needs a GPU -->    why the tests cannot run it; it is parsed all the same
    <!-- slow -->                    the page runs among the slow tests
    <!-- output -->                  the block is what the block before it prints

A block of Python with a title is a file of that name. A line of output that is `...` stands for any
lines, `...` within a line for anything.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")))
LANGUAGES = ("python", "sh", "console", "text", "yaml", "math")
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
MARKS = re.compile(r"not run: \S.*|slow|output")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its fence
    language: str
    code: str
    mark: str = ""
    title: str = ""

    @property
    def why_not_run(self) -> str:
        return self.mark.partition("not run: ")[2]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass
class Command:
    """A line of a console block and the lines that it prints."""

    words: str
    output: list[str] = field(default_factory=list)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    text = read(page)
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            code=found["code"],
            mark=(found["mark"] or "").strip(),
            title=found["title"] or "",
        )
        for found in BLOCK.finditer(text)
    ]


def prose(page: str) -> str:
    """A page without its blocks."""
    return BLOCK.sub("", read(page))


def commands(block: Block) -> list[Command]:
    """The commands of a block of `sh` or `console`, continued lines joined."""
    found: list[Command] = []
    for line in block.code.replace("\\\n", " ").splitlines():
        if block.language == "sh":
            found.append(Command(line))
        elif line.startswith("$ "):
            found.append(Command(line[2:]))
        else:
            found[-1].output.append(line)
    return [each for each in found if each.words.strip() and not each.words.startswith("#")]


def matches(expected: list[str], printed: str) -> bool:
    """Whether `printed` is the expected lines, spaces at their ends aside."""
    parts = [
        r"(?:.*\n)*?" if line.strip() == "..." else _pattern(line.rstrip()) for line in expected
    ]
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    text = "".join(f"{line}\n" for line in lines)
    return re.fullmatch("".join(parts), text) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("...")) + "\n"
