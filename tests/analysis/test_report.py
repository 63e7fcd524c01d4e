import base64
import math
import re
import shutil
import struct
import sys
import zlib
from html.parser import HTMLParser

import pytest
from browser import look_at

from attnres.analysis import report
from attnres.analysis.report import write_report

VOID = {"meta", "img", "source", "br", "hr", "link"}
FIGURES = [
    *("Train loss", "Validation loss", "Output RMS", "Gradient norm", "Heat map", "Normalised"),
    "Depth mixing matrix",
]


class Page(HTMLParser):
    """Tags with their attributes, text by tag, table rows; refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.rows = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def read(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


@pytest.fixture
def coarse(monkeypatch):
    """Fewer pixels, for tests that look at words."""
    monkeypatch.setattr("attnres.analysis.canvas.DPI", 20)


def png_size(url):
    """Width and height of a PNG in a data URL, whose pixels must unpack."""
    head, _, body = url.partition(",")
    assert head == "data:image/png;base64"
    data = base64.b64decode(body, validate=True)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    pixels, place = b"", 8
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        pixels += data[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += length + 12
    width, height = struct.unpack(">II", data[16:24])
    assert len(zlib.decompress(pixels)) == height * (1 + 4 * width)
    return width, height


def test_every_figure_is_there_in_both_themes(demo_page):
    page = Page(demo_page)
    images, sources = page.all("img"), page.all("source")
    assert len(sources) == len(images) == len(FIGURES)
    for image, source, words in zip(images, sources, FIGURES, strict=True):
        assert image["alt"].startswith(words)
        assert source["media"] == "(prefers-color-scheme: dark)"
        twice = 2 * int(image["width"]), 2 * int(image["height"])
        assert png_size(image["src"]) == png_size(source["srcset"]) == twice
        assert image["src"] != source["srcset"]


def test_page_stands_alone(demo_page):
    page = Page(demo_page)
    assert not page.all("script")
    assert not page.all("link")
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[\w+/=]+", "", demo_page)
    )


def test_page_is_semantic(demo_page):
    page = Page(demo_page)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    labels = [attributes["aria-labelledby"] for attributes in page.all("section")]
    assert set(labels) <= set(ids)


def test_table_holds_the_numbers(demo_page):
    rows = {row[0]: row[1:] for row in Page(demo_page).rows}
    loss = f"{3.9 + 3 * math.exp(-5):.4f}"
    bits = f"{(3.9 + 3 * math.exp(-5)) / 2:.4f}"
    block = ["attn_res, 4 blocks of 3", "2,612,345", "3,072", "9,055", "1.15 GiB", loss, bits]
    assert rows["block"] == [*block, "−0.1000", "100 of 100"]  # noqa: RUF001  the sign that is printed
    assert rows["model.residual.method"] == ["standard", "attn_res", "attn_res"]


def test_page_says_what_is_seen(demo_page):
    text = " ".join(Page(demo_page).text.split())
    assert "standard: the running sum grows with depth" in text
    assert "block: the running sum falls back at block ends" in text
    assert "A weight is not importance." in text
    assert "standard: off-diagonal rank 1; rows sum to 1 to 13;" in text
    assert "one seed cannot show" in text
    assert "centred mean" not in text  # ten logged values are not smoothed
    assert '"torch": "2.13.0"' in text


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_the_explorer_is_linked_where_there_is_one(folder):
    page = read(folder)
    assert page.all("a") == []
    assert "attnres explore FOLDER writes a page" in page.text
    (folder / "explorer.html").touch()
    page = read(folder)
    assert page.all("a") == [{"href": "explorer.html"}]
    assert "attnres explore" not in page.text


@pytest.mark.usefixtures("coarse")
def test_names_are_escaped(folder, make):
    name = "<script>alert('x')<&\"b>$a$"
    make.run(folder, name, method="<i>new", data={"corpus": "</pre><b>"})
    page = read(folder)
    assert not page.all("script")
    assert not page.all("i")
    assert not page.all("b")
    assert f"{name}: the running sum" in page.text


@pytest.mark.usefixtures("coarse")
def test_an_unfinished_run_is_said_to_be(folder, make):
    make.edit(folder / "block", lambda rows: [row for row in rows if row["step"] < 50])
    with (folder / "block" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    page = read(folder)
    assert "block is unfinished: 40 of 100 steps so far." in page.text
    assert "block: no probe yet." in page.text
    assert len(page.all("img")) == len(FIGURES)


def test_a_run_that_has_not_begun_has_a_page(make, tmp_path):
    path = make.run(tmp_path / "new", "standard")
    (path / "metrics.jsonl").unlink()
    page = read(tmp_path / "new")
    assert page.all("img") == []
    assert "Nothing recorded yet." in page.text


@pytest.mark.usefixtures("coarse")
def test_losses_that_are_not_numbers_are_reported(folder, make):
    def spoil(rows):
        late = {
            "probe": {"stream_rms": [math.nan] * 12, "weights": [[math.nan]] * 13},
            "train": {"loss": math.nan},
            "validation": {"loss": math.nan},
        }
        return [row | late.get(row["kind"], {}) if row["step"] > 50 else row for row in rows]

    make.edit(folder / "full", spoil)
    page = read(folder)
    assert "full: the validation loss is not finite from step 100." in page.text
    assert len(page.all("img")) == len(FIGURES)
    assert "NaN" in next(row for row in page.rows if row[:2] == ["full", "attn_res, Full"])


def test_only_a_whole_page_replaces_the_last_one(folder, monkeypatch):
    monkeypatch.setattr(report, "render", lambda runs, experiment: f"{experiment}: {len(runs)}")
    path = write_report(folder)
    assert path == folder / "report.html"
    assert path.read_text() == "demo: 3"
    shutil.rmtree(folder / "full")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report(folder)
    assert path.read_text() == "demo: 3"
    assert [file.name for file in folder.iterdir() if file.is_file()] == ["report.html"]


def test_a_missing_extra_is_named_with_its_install_line(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"jinja2: pip install .*\[report\]"):
        write_report(folder)


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "is_dark"), [(1, False), (0, True)])
def test_page_opens_in_a_browser(demo_page, tmp_path, scheme, is_dark):
    found = look_at(demo_page, tmp_path, scheme)
    assert len(found["images"]) == len(FIGURES)
    assert all(natural == 1840 and width > 0 for natural, width in found["images"])
    assert found["dark"] == [is_dark] * len(FIGURES)
    assert set(found["loads"]) <= {"data:"}
    assert found["overflow"] <= 0


def test_a_probe_without_a_running_sum_has_its_page(folder, make):
    def forget(rows):
        return [row | {"stream_rms": None} if row["kind"] == "probe" else row for row in rows]

    for name in ("standard", "block", "full"):
        make.edit(folder / name, forget)
    page = write_report(folder).read_text("utf-8")
    assert "standard: no running sum." in page
