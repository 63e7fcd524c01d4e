"""A page in headless Chromium, and what it says of itself."""

import json
import re
import shutil
import subprocess

import pytest

CHECK = """<script>
window.onload = () => {
  const images = [...document.images].map(image => [image.naturalWidth, image.width]);
  const loads = performance.getEntriesByType("resource").map(entry => entry.name.slice(0, 5));
  const dark = [...document.images].map(image =>
    image.currentSrc === image.parentElement.querySelector("source").srcset);
  const overflow = document.documentElement.scrollWidth - innerWidth;
  const found = document.createElement("output");
  found.textContent = JSON.stringify({images, loads, dark, overflow});
  document.body.append(found);
  console.info("page checked");
};
</script>"""

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--dump-dom",
    "--window-size=1200,900",
]


def find_browser() -> str:
    """Skips without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium or Chrome on the path")
    return browser


def look_at(page: str, folder, scheme: int = 1) -> dict:
    """What CHECK finds in the page; scheme 0 is dark, 1 light. Skips without a browser."""
    browser = find_browser()
    file = folder / "checked.html"
    file.write_text(page + CHECK, encoding="utf-8")
    own = [f"--user-data-dir={folder / 'profile'}"]
    own += [f"--blink-settings=preferredColorScheme={scheme}", file.as_uri()]
    done = subprocess.run([browser, *FLAGS, *own], capture_output=True, text=True, timeout=60)
    match = re.search(r"<output>(.*)</output>", done.stdout)
    assert match, done.stderr[-2000:]
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(messages) == 1, messages
    assert "page checked" in messages[0]
    return json.loads(match[1])
