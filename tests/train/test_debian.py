"""Texts of made-up packages, by made-up tools: no network, and no Debian."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest
from call_command import call_command

from attnres.train import debian_packages
from attnres.train.corpus import read_documents
from attnres.train.debian import MissingTextsError, fetch_texts
from attnres.train.debian_packages import Package
from attnres.train.plain_text import clean, dictionary_parts, html_text, without_common_blocks

APT_GET = """#!/bin/sh
test -d "$STORE/$3" || { echo 'W: slow' >&2; echo "E: Unable to locate package $3" >&2; exit 100; }
echo "$3" > "$3_1.0_all.deb"
"""
DPKG_DEB = """#!/bin/sh
name=$(cat "$2")
if [ "$1" = -f ]; then echo 1.0; else cp -r "$STORE/$name" "$3"; fi
"""
PROSE = "It is a truth that is acknowledged by all who have read so far as this. " * 8
PAGE = f"<html><head><title>No</title></head><body><h1>Yes</h1><p>{PROSE}</p></body></html>"
PACKAGES = (
    Package(name="pages", files="usr/doc/*.html", licence="free"),
    Package(name="notes", files="usr/notes/**/*.txt.gz", licence="free"),
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """apt-get and dpkg-deb, which take a folder for a package, and the folder of these."""
    programs, store = tmp_path / "bin", tmp_path / "store"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("STORE", str(store))
    pages, notes = store / "pages" / "usr" / "doc", store / "notes" / "usr" / "notes" / "deep"
    for folder in (pages, notes):
        folder.mkdir(parents=True)
    (pages / "b.html").write_text(PAGE.replace("Yes", "Second"))
    (pages / "a.html").write_text(PAGE)
    (pages / "copy.html").write_text(PAGE)
    (pages / "link.html").symlink_to("a.html")
    (pages / "short.html").write_text("<p>Too short.</p>")
    (pages / "other.css").write_text(PROSE)
    (notes / "n.txt.gz").write_bytes(gzip.compress(PROSE.replace(" far", "\r\nfar").encode()))
    return store


def test_documents_are_those_of_the_pattern_each_once(tools, tmp_path):
    reported = []
    found = fetch_texts(tmp_path / "texts", PACKAGES, reported.append)
    assert found == reported
    assert [(each.package.name, each.n_documents) for each in found] == [("pages", 2), ("notes", 1)]
    rows = [json.loads(line) for line in (tmp_path / "texts" / "pages.jsonl").open()]
    assert [row["title"] for row in rows] == ["a.html", "b.html"]
    assert rows[0] == {"title": "a.html", "source": "pages", "text": f"Yes\n\n{PROSE.strip()}"}
    documents = read_documents(tmp_path / "texts")
    assert len(documents) == 3
    assert "so\nfar" in documents[0]
    n_bytes = sum(len(text.encode()) for text in documents)
    assert sum(each.n_bytes for each in found) == n_bytes
    assert sorted(path.name for path in (tmp_path / "texts").iterdir()) == [
        "SOURCES", "notes.jsonl", "pages.jsonl"
    ]  # fmt: skip


def test_sums_are_those_of_the_file_and_are_checked(tools, tmp_path):
    (pages,) = fetch_texts(tmp_path / "texts", PACKAGES[:1])
    file = tmp_path / "texts" / "pages.jsonl"
    assert pages.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert not pages.is_checked
    known = replace(PACKAGES[0], version="1.0", sha256=pages.sha256)
    for folder in ("texts", "anew"):
        assert fetch_texts(tmp_path / folder, [known])[0].is_checked
    wrong = replace(known, sha256="0" * 64)
    for folder in ("texts", "wrong"):
        with pytest.raises(ValueError, match=f"SHA-256 {pages.sha256}, not 0{{64}}"):
            fetch_texts(tmp_path / folder, [wrong])
    assert not (tmp_path / "wrong" / "pages.jsonl").exists()


def test_what_is_there_is_kept_and_what_is_damaged_comes_anew(tools, tmp_path, monkeypatch):
    first = fetch_texts(tmp_path / "texts", PACKAGES)
    (tmp_path / "texts" / "notes.jsonl").write_text("damaged")
    for path in (tools / "pages").rglob("*.html"):
        path.unlink()  # so that it cannot be fetched
    assert fetch_texts(tmp_path / "texts", PACKAGES) == first


def test_offline_the_missing_are_named_and_the_others_written(tools, tmp_path):
    unknown = Package(name="unknown", files="*")
    with pytest.raises(MissingTextsError, match=r"not fetched: unknown .apt-get: Unable"):
        fetch_texts(tmp_path / "texts", [unknown, *PACKAGES])
    assert len(read_documents(tmp_path / "texts")) == 3


def test_without_the_tools_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTextsError, match="apt-get and dpkg-deb not found"):
        fetch_texts(tmp_path / "texts", PACKAGES)


def test_a_package_without_text_is_refused(tools, tmp_path):
    with pytest.raises(ValueError, match=r"pages 1\.0 has no text at usr/other"):
        fetch_texts(tmp_path / "texts", [replace(PACKAGES[0], files="usr/other/*")])


def test_the_command(tools, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(debian_packages, "PACKAGES", PACKAGES)
    texts = tmp_path / "texts"
    status, out, err = call_command("corpus", [texts, "--only", "pages"], capsys)
    assert (status, err) == (0, "")
    assert "pages 1.0: 0.0 MB in 2 documents, free; a version whose sum is not known" in out
    assert "in all: 0.0 MB in 2 documents" in out
    assert not (texts / "notes.jsonl").exists()
    status, _, err = call_command("corpus", [texts, "--only", "other"], capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert "no texts of 'other'; there are: pages, notes" in err


def test_every_package_has_a_sum_and_a_licence():
    packages = debian_packages.PACKAGES
    assert len({each.name for each in packages}) == len(packages)
    for each in packages:
        assert len(each.sha256) == 64, each.name
        assert each.version, each.name
        assert each.licence, each.name


def test_html_by_hand():
    page = (
        "<head><title>T</title></head><nav>skip</nav><p>One <b>bold</b>\n  word&amp;s<br>next"
        "<script>no</script></p><pre>a\n  b</pre><ul><li>x<li>y</ul><footer>end</footer>"
    )
    assert html_text(page) == "One bold word&s\nnext\n\na\n  b\n\nx\n\ny"


def test_cleaning_by_hand():
    text = "\ufeff\u201cA\u201d \t\r\n\x0c" + "=" * 40 + "\n\n\n\nB\u00a0c \n"
    assert clean(text) == '"A"\n====\n\nB c'


def test_dictionary_entries_are_not_cut():
    entries = [f"Word{i}\n   meaning {'x' * 9_000}\n   of it" for i in range(5)]
    parts = list(dictionary_parts("\n\n".join(entries)))
    assert [part.count("Word") for part in parts] == [3, 2]
    assert "\n\n".join(parts) == "\n\n".join(entries)


def test_what_many_pages_share_is_left_out():
    pages = [(str(i), f"Home\n\nPage {i}\n\nSome" + "\n\nRare" * (i < 10)) for i in range(11)]
    found = dict(without_common_blocks(pages))
    assert found["10"] == "Page 10"
    assert found["0"] == "Page 0\n\nRare"
    assert dict(without_common_blocks(pages[:10])) == dict(pages[:10])
