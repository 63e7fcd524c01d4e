"""Plain text from HTML, from dictionaries and from files that are nearly plain."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

HIDDEN = ("script", "style", "head", "nav", "footer", "svg")
INLINE = (
    "a",
    "abbr",
    "b",
    "code",
    "em",
    "i",
    "kbd",
    "span",
    "strong",
    "sub",
    "sup",
    "tt",
    "u",
    "var",
)
PART = 20_000  # characters of a document that is cut from a dictionary, at least
COMMON, FEW_PAGES = 0.1, 10  # a block of more pages than both says nothing of one
PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})


def clean(text: str) -> str:
    """One kind of newline and quotes, no control characters, trailing blanks or wide gaps."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(PLAIN)
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\ufffd]", "", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"([-=~*_.#^+])\1{9,}", lambda rule: rule[1] * 4, text)  # rules below headings
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def html_text(text: str) -> str:
    """What a page shows, a blank line between blocks; preformatted text keeps its lines."""
    page = _Page()
    page.feed(text)
    page.close()
    return page.text()


def dictionary_parts(text: str) -> Iterator[str]:
    """Entries joined to documents: an entry begins where a line follows a blank one unindented."""
    entries = re.split(r"\n\s*\n(?=\S)", text)
    part: list[str] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += len(entry)
        if size >= PART:
            yield "\n\n".join(part)
            part, size = [], 0
    if part:
        yield "\n\n".join(part)


def without_common_blocks(pages: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names and texts without the blocks that many pages share: menus, and links to the next."""
    counts = Counter(block for _, text in pages for block in set(text.split("\n\n")))
    most = max(FEW_PAGES, COMMON * len(pages))
    for name, text in pages:
        yield name, "\n\n".join(b for b in text.split("\n\n") if counts[b] <= most)


class _Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self._blocks: list[str] = [""]
        self._hidden: list[str] = []  # open elements that are not shown
        self._n_pre = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in HIDDEN:
            self._hidden.append(tag)
        self._n_pre += tag == "pre"
        if tag == "br":
            self._blocks[-1] += "\n"
        elif tag not in INLINE:
            self._blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        self._n_pre = max(self._n_pre - (tag == "pre"), 0)
        if tag not in INLINE and tag != "br":
            self._blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._blocks[-1] += data if self._n_pre else re.sub(r"\s+", " ", data)

    def text(self) -> str:
        return "\n\n".join(block.strip(" \n") for block in self._blocks if block.strip())
