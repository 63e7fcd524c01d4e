"""How long the page of the depth explorer takes to follow a key, in headless Chromium.

    python benchmarks/explorer.py --n-tokens 2000 --n-layers 12

Three runs of Full AttnRes with random weights, so that every reader has as many sources as there
can be. Each key is pressed when the frame of the one before is drawn. Times are those of the page's
main thread, as Chromium counts them: script, style, layout and painting.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from machine import describe_machine, print_machine
from report import print_table, write_json

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "analysis")]  # they drive a browser

from devtools import Tab, tab  # noqa: E402
from explorer_pages import attends  # noqa: E402

from attnres.analysis.explorer.page import render  # noqa: E402

MOVES = {  # what is pressed in the text, in turn
    "token": ("ArrowRight",),
    "reader": ("ArrowUp", "ArrowDown"),
    "source": ("PageDown", "PageUp"),
}
KINDS = {"script": "ScriptDuration", "style": "RecalcStyleDuration", "layout": "LayoutDuration"}


@dataclass(frozen=True)
class Settings:
    n_tokens: int = 2000
    """tokens of the text"""
    n_layers: int = 12
    """of two sublayers each"""
    n_keys: int = 100
    """times that a key is pressed"""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """file for the figures"""


def main(settings: Settings) -> None:
    machine = describe_machine()
    print_machine(machine)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "explorer.html"
        names = ("one", "two", "three")
        runs = [attends(name, settings.n_layers, settings.n_tokens, seq_len=256) for name in names]
        page.write_text(render("benchmark", runs), encoding="utf-8")
        n_bytes = page.stat().st_size
        with tab(Path(folder) / "profile") as browser:
            browser.open(page.as_uri())
            browser.call("Performance.enable", timeDomain="threadTicks")
            browser.frame()
            opened = _metrics(browser)
            browser.eval("document.getElementById('text').focus()")
            moves = {name: _follow(browser, keys, settings) for name, keys in MOVES.items()}
    words = f"{settings.n_tokens:,} tokens, {2 * settings.n_layers} sublayers, 3 runs"
    title = f"{words}, {n_bytes / 1e6:.1f} MB: ms of the main thread a key"
    print_table(title, ("key", "median", "worst", *KINDS), map(_row, moves.items()))
    print(f"\nopened in {opened['task']:.0f} ms of it, {opened['script']:.0f} of them script")
    result = {"machine": machine, "bytes": n_bytes, "opened": opened, "moves": moves}
    write_json(settings.json, result, [])


def _follow(browser: Tab, keys: tuple[str, ...], settings: Settings) -> list[dict[str, float]]:
    found = []
    for key in islice(cycle(keys), settings.n_keys):
        before = _metrics(browser)
        browser.press(key)
        after = _metrics(browser)
        found.append({name: after[name] - before[name] for name in after})
    return found


def _metrics(browser: Tab) -> dict[str, float]:
    """Milliseconds since the page began."""
    found = browser.call("Performance.getMetrics")["metrics"]
    by_name: dict[str, Any] = {each["name"]: 1e3 * each["value"] for each in found}
    return {name: by_name[kind] for name, kind in {"task": "TaskDuration", **KINDS}.items()}


def _row(move: tuple[str, list[dict[str, float]]]) -> list[str]:
    name, found = move
    task = [each["task"] for each in found]
    parts = [statistics.median(each[kind] for each in found) for kind in KINDS]
    return [name, *(f"{x:.1f}" for x in (statistics.median(task), max(task), *parts))]


if __name__ == "__main__":
    main(tyro.cli(Settings, prog="python benchmarks/explorer.py", description=__doc__))
