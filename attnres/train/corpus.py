"""Where documents come from: the corpus in this package, or text, JSON and Parquet files."""

import codecs
import glob
import hashlib
import json
import lzma
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from attnres.cache import cache_folder

if TYPE_CHECKING:
    from datasets import Dataset

EMBEDDED = Path(__file__).parent / "texts" / "corpus.jsonl.xz"
EMBEDDED_SHA256 = "21e47d941a7bce00df955c6cc4ba215f5a126b907c780e5afd68ac6d171c2684"
FORMATS = {".txt": "text", ".md": "text", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}


@dataclass(frozen=True, kw_only=True)
class Document:
    title: str
    source: str
    text: str


def embedded_documents(file: Path = EMBEDDED) -> list[Document]:
    """233 State of the Union addresses, then Moby Dick by chapters: 12 MB of public-domain English.

    Sources, licences and what was cleaned are in attnres/train/texts/LICENSES.md.
    """
    data = file.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != EMBEDDED_SHA256:
        raise ValueError(
            f"{file} is damaged: SHA-256 {found}, not {EMBEDDED_SHA256}; reinstall the package"
        )
    return [Document(**json.loads(line)) for line in lzma.decompress(data).decode().splitlines()]


def read_documents(path: str | Path, text_column: str = "text") -> list[str]:
    """The documents of a local file, or of all files below a folder in sorted order.

    A .txt or .md file is one document; each row of a .jsonl, .json or .parquet file is one. In a
    folder, hidden files and files with other endings are passed over, and so are empty files.
    Rows and files that hold nothing but white space are no documents.
    """
    texts: list[str | None] = []
    for kind, group in groupby(_files(Path(path).expanduser()), key=_format):
        files = list(group)
        texts += _read_texts(files) if kind == "text" else _read_rows(kind, files, text_column)
    documents = [text for text in texts if text and not text.isspace()]
    if not documents:
        raise ValueError(f"{path} holds no documents")
    return documents


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_data(file.relative_to(path), path))
        if not files:
            raise ValueError(f"folder {path} holds no file that ends in {', '.join(FORMATS)}")
    else:
        _format(path)
        files = [path]
    files = [file for file in files if file.stat().st_size]
    if not files:
        raise ValueError(f"{path} is empty")
    return files


def _is_data(name: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and name.suffix.lower() in FORMATS and (folder / name).is_file()


def _format(file: Path) -> str:
    kind = FORMATS.get(file.suffix.lower())
    if kind is None:
        raise ValueError(f"{file} has an unknown ending; known are {', '.join(FORMATS)}")
    return kind


def _read_texts(files: Sequence[Path]) -> list[str | None]:
    for file in files:
        _check_utf8(file)
    return list(_load("text", files)["text"])


def _read_rows(kind: str, files: Sequence[Path], text_column: str) -> list[str | None]:
    """The column of each file in turn: the files need not share their other columns."""
    from datasets import Value

    texts: list[str | None] = []
    for file in files:
        if kind == "json":
            _check_utf8(file)
        rows = _load(kind, [file])
        if text_column not in rows.column_names:
            columns = ", ".join(rows.column_names)
            raise ValueError(f"{file} has no column {text_column!r}; its columns are {columns}")
        if rows.features[text_column] not in (Value("string"), Value("large_string")):
            raise ValueError(f"column {text_column!r} of {file} holds no text")
        texts += rows[text_column]
    return texts


def _check_utf8(file: Path) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                if "\0" in decoder.decode(chunk):
                    raise ValueError(f"{file} is not text: it holds a zero byte")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason}") from error


def _load(kind: str, files: Sequence[Path]) -> "Dataset":
    """Read through `datasets` into memory, by its readers that ask no server (`load_dataset` does).

    Its own cache goes by the time of a file's last change, so each reading has a fresh one.
    """
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    readers = {
        "text": partial(Dataset.from_text, sample_by="document", encoding="utf-8-sig"),
        "json": partial(Dataset.from_json, parse_agent_traces=False),
        "parquet": partial(Dataset.from_parquet),
    }
    paths: list[str | bytes | os.PathLike] = [glob.escape(str(file.resolve())) for file in files]
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="datasets-", dir=cache) as folder, _quiet():
        try:
            return readers[kind](paths, cache_dir=folder, keep_in_memory=True)
        except (DatasetGenerationError, ValueError, OSError) as error:
            names = str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1]}"
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(f"{names} cannot be read: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, and no log of an error that is about to be raised."""
    from datasets import utils
    from datasets.utils import logging

    bars_shown = not utils.are_progress_bars_disabled()
    verbosity = logging.get_verbosity()
    utils.disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars_shown:
            utils.enable_progress_bars()
