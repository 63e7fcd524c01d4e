"""The corpus is cleaned of what was seen in its sources, and built to the same bytes."""

import importlib.util
import json
import lzma
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "build_corpus.py"
spec = importlib.util.spec_from_file_location("build_corpus", SCRIPT)
assert spec is not None
assert spec.loader is not None
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (" a \r\n b  c\n", "a b c"),
        ("the act &quot;x&quot; here&mdash;there", 'the act "x" here—there'),
        ("4 and 4 1\x02 per cent", "4 and 4 1/2 per cent"),
        ("because [p.2] we", "because we"),
        ("matter .........cents 93.0 ______ x", "matter cents 93.0 x"),
        ("our land.We\u2019ve", "our land. We've"),
        ("the U.S.A. and more... -- yes", "the U.S.A. and more... -- yes"),
    ],
)
def test_clean_address(raw, clean):
    assert build.clean_address(raw) == clean


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("one\n\n\ntwo  three\n", "one\n\ntwo three"),
        ('     "In the whale,      Arched over me', '"In the whale,\nArched over me'),
        ("     WHALE,     Fegee.\n     X,  Y.", "WHALE, Fegee.\nX, Y."),
        ("     *It is happily borne      out by", "*It is happily borne out by"),
        ("splinter glasses! EXTRACTS.\n\nA", "splinter glasses!\n\nEXTRACTS.\n\nA"),
    ],
)
def test_clean_chapter(raw, clean):
    assert build.clean_chapter(raw) == clean


def test_build_is_in_order_and_the_same_each_time(tmp_path, monkeypatch, capsys):
    sotu, moby = tmp_path / "sotu" / "data", tmp_path / "moby" / "data"
    sotu.mkdir(parents=True)
    moby.mkdir(parents=True)
    for year, name in [(1953, "Eisenhower"), (1953, "Truman"), (1952, "Truman"), (1790, "W")]:
        record = {"year": year, "name": name, "text": f"{year} {name}"}
        (sotu / f"{year}_{name}.json").write_text(json.dumps(record))
    (moby / "file_list.json").write_text('["contents.txt", "chapter_1.txt", "epilogue.txt"]')
    for name in ("epilogue", "contents", "chapter_1"):
        (moby / f"{name}.txt").write_text(f"{name}\n\ntext\n")
    files = [tmp_path / "first.xz", tmp_path / "second.xz"]
    for file in files:
        arguments = [str(sotu.parent), str(moby.parent), "--output", str(file)]
        monkeypatch.setattr("sys.argv", ["build_corpus.py", *arguments])
        build.main()
    assert files[0].read_bytes() == files[1].read_bytes()
    lines = lzma.decompress(files[0].read_bytes()).decode().splitlines()
    documents = [json.loads(line) for line in lines]
    assert [document["text"].split("\n")[0] for document in documents] == [
        "1790 W",
        "1952 Truman",
        "1953 Truman",
        "1953 Eisenhower",
        "chapter_1",
        "epilogue",
    ]
    assert "6 documents" in capsys.readouterr().out
