"""Hooks of the documentation site: the repository's files as pages, and formulas without a script.

The README is the first page, and other Markdown of the repository is found where its links say. A
link to code opens a page that shows the file. So one text serves the repository and the site, and
every link of it works in both without a network.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OF_THE_REPOSITORY = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/**/*.md")
LINK = r"\]\((?![a-z]+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
FENCE = r"^(?P<fence>```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$)"
FENCE_OR_LINK = re.compile(f"{FENCE}|{LINK}", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"^<!-- [^\n]* -->\n(?=```)", re.MULTILINE)  # for the tests
LEXERS = {".py": "python", ".sh": "sh", ".cpp": "cpp", ".h": "cpp", ".html": "html"}

IMAGES = (".png", ".svg")  # are files of the site as they are

SITE: dict[str, str] = {}
"""The page of the site by the path in the repository."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's Markdown, and a page for each file and folder that a link names."""
    SITE.clear()
    SITE.update({f"docs/{each.src_uri}": each.src_uri for each in files.documentation_pages()})
    for path in _matching(OF_THE_REPOSITORY):
        SITE[path] = "index.md" if path == "README.md" else path
        files.append(File.generated(config, SITE[path], content=_read(path)))
    linked = _linked()
    for path in sorted(each for each in linked if each.endswith(IMAGES)):
        SITE[path] = path
        files.append(File(path, str(ROOT), config.site_dir, use_directory_urls=False))
    for path in sorted(each for each in linked if not each.endswith(IMAGES)):
        SITE[path] = f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"
        files.append(File.generated(config, SITE[path], content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site, and write formulas as MathML."""
    uri = page.file.src_uri
    path = next(path for path, each in SITE.items() if each == uri)

    def replaced(found: re.Match[str]) -> str:
        if found["language"] == "math":
            return formula(found["code"])
        if found["fence"]:
            return found["fence"]
        target = SITE.get(_resolved(path, found["target"]))
        if target is None:
            return found[0]  # mkdocs says that it is no page
        link = posixpath.relpath(target, posixpath.dirname(uri) or ".")
        return f"]({link}{found['anchor'] or ''})"

    return FENCE_OR_LINK.sub(replaced, MARK.sub("", markdown))


def formula(latex: str) -> str:
    """A block of MathML, which browsers draw by themselves."""
    return f'<div class="formula">{convert(latex.strip(), display="block")}</div>\n'


def _linked() -> set[str]:
    """Paths in the repository that pages link to and that are no pages, with files of folders."""
    found = {
        path
        for page in SITE
        for each in FENCE_OR_LINK.finditer(_read(page))
        if each["target"] and (path := _resolved(page, each["target"])) not in SITE
    }
    folders = [path for path in found if (ROOT / path).is_dir()]
    found |= {str(file.relative_to(ROOT)) for path in folders for file in _files(ROOT / path)}
    is_of_docs = tuple(path for path in found if path.startswith("docs/") and path.endswith(IMAGES))
    return {p for p in found if (ROOT / p).exists() and p not in SITE and p not in is_of_docs}


def _resolved(page: str, target: str) -> str:
    """The path in the repository that a link of a page means; a folder with a README is that."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return f"{path}/README.md" if (ROOT / path / "README.md").is_file() else path


def _shown(path: str) -> str:
    """A file as a block of code, a folder as a list of its files and their first lines."""
    place = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if place.is_dir():
        rows = (f"- [{file.name}]({file.name}.md): {_about(file)}" for file in _files(place))
        return head + "\n".join(rows) + "\n"
    text = place.read_text(encoding="utf-8")
    return f"{head}~~~~~~ {LEXERS.get(place.suffix, 'text')}\n{text}\n~~~~~~\n"


def _about(file: Path) -> str:
    found = re.match(r'(?:#!.*\n)?"""(.*?)(?:"""|\n)', file.read_text(encoding="utf-8"))
    return found[1] if found else ""


def _files(folder: Path) -> Iterator[Path]:
    return (each for each in sorted(folder.iterdir()) if each.suffix in LEXERS)


def _matching(patterns: tuple[str, ...]) -> list[str]:
    return [str(p.relative_to(ROOT)) for each in patterns for p in sorted(ROOT.glob(each))]


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
