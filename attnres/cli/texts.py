"""The command that fetches texts to train on."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnres.arguments import parse

if TYPE_CHECKING:
    from attnres.train.debian import Fetched


def corpus(arguments: list[str]) -> None:
    """Fetch 100 MB of English from packages of Debian 12, clean it and check its sums.

    attnres corpus FOLDER          then: attnres train demo --data.path FOLDER

    Needs apt-get, dpkg-deb and a network. The texts have licences of their own, which
    FOLDER/SOURCES names: train on them, do not pass them on.
    """
    import tyro

    from attnres.train.debian import MissingTextsError, fetch_texts
    from attnres.train.debian_packages import PACKAGES

    @dataclass(frozen=True)
    class Corpus:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """where the texts go; what is there already is kept"""
        only: tuple[str, ...] = ()
        """packages to fetch; all, if not given"""

    chosen = parse(Corpus, "corpus", corpus, arguments)
    names = [package.name for package in PACKAGES]
    for name in chosen.only:
        if name not in names:
            raise ValueError(f"no texts of {name!r}; there are: {', '.join(names)}")
    wanted = [each for each in PACKAGES if not chosen.only or each.name in chosen.only]
    found: list[Fetched] = []

    def report(fetched: "Fetched") -> None:
        found.append(fetched)
        _say(fetched)

    try:
        fetch_texts(chosen.folder, wanted, report)
    except MissingTextsError:
        _say_total(found)
        raise
    _say_total(found)
    print(f"texts: {chosen.folder}")


def _say(fetched: "Fetched") -> None:
    checked = "sum checked" if fetched.is_checked else "a version whose sum is not known"
    print(
        f"{fetched.package.name} {fetched.version}: {fetched.n_bytes / 1e6:.1f} MB in "
        f"{fetched.n_documents:,} documents, {fetched.package.licence}; {checked}"
    )


def _say_total(found: "list[Fetched]") -> None:
    n_bytes, n_documents = (sum(getattr(x, f) for x in found) for f in ("n_bytes", "n_documents"))
    print(f"in all: {n_bytes / 1e6:.1f} MB in {n_documents:,} documents")
