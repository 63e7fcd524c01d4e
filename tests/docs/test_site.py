"""The site builds strictly, needs no network to be read, and lacks no page and no public name."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, prose, read

PARTS = ("ops", "models", "distributed", "inference", "cost", "conformance")
FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
OF_THE_REPOSITORY = ("CONTRIBUTING.md", "experiments/README.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_a_page_of_the_site_fetches_nothing(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    found = {page.name: FETCHED.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: tags for name, tags in found.items() if tags} == {}


@pytest.mark.slow
def test_formulas_are_drawn_without_a_script(site):
    page = (site / "method.html").read_text(encoding="utf-8")
    assert page.count("<math") == read("docs/method.md").count("```math") > 0
    assert "\\begin" not in page


@pytest.mark.slow
def test_a_link_to_code_opens_the_code(site):
    assert 'href="source/attnres/ops/reference.py.html"' in (site / "index.html").read_text()
    shown = (site / "source/attnres/ops/reference.py.html").read_text(encoding="utf-8")
    assert "depth_attention" in shown


@pytest.mark.slow
def test_marks_for_the_tests_are_not_shown(site):
    assert "not run:" not in (site / "tour.html").read_text(encoding="utf-8")


def test_every_public_name_has_its_place_in_the_api():
    pages = "\n".join(read(page) for page in PAGES if page.startswith("docs/api/"))
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", pages, re.MULTILINE)}
    for package in ("attnres", *(f"attnres.{part}" for part in PARTS)):
        names = importlib.import_module(package).__all__
        public = {name for name in names if not name.isupper()}  # constants have no docstring
        assert not public - shown, f"{package}: {public - shown}"


@pytest.mark.parametrize("page", [*PAGES, *OF_THE_REPOSITORY])
def test_every_link_leads_somewhere(page):
    words = re.sub(r"`[^`]*`", "", prose(page))
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", words)
    lost = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert lost == []


def test_no_page_says_what_another_says():
    """A sentence of some length stands once in the README and docs/."""
    seen: dict[str, str] = {}
    for page in PAGES:
        for words in re.split(r"\n\n|(?<=[.:]) ", prose(page)):
            sentence = " ".join(words.split())
            if len(sentence) > 100 and not sentence.startswith(("|", ":::")):
                assert sentence not in seen, f"{page} and {seen[sentence]}: {sentence}"
                seen[sentence] = page
