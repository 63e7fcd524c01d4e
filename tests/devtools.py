"""A page in headless Chromium, driven as a person would: real keys and clicks, by its own protocol.

Chromium takes commands as JSON that ends in a zero byte on file descriptor 3 and answers on 4.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import FLAGS, find_browser

DUMPING = ("--dump-dom", "--virtual-time-budget", "--enable-logging")  # flags of one look alone
KEYS = {  # virtual key codes
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9},
    **{"PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "Enter": 13, " ": 32},
}
SHIFT = 8
PLACED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Tab:
    """One page; what it says of itself, and what is done to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", send: int, receive: int):
        self._process, self._send = process, send
        self._answers = os.fdopen(receive, "rb", buffering=0)
        self._unread = b""
        self._n_sent = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, scheme: str = "light") -> None:
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        self.events.clear()
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.prefer(scheme=scheme)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def prefer(self, scheme: str = "light", motion: str = "no-preference") -> None:
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    def eval(self, expression: str) -> Any:
        """The value of an expression, awaited; AssertionError with what it threw."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        self.eval(
            "new Promise((yes, no) => { let looks = 0; const look = () => "
            f"({condition}) ? yes() : ++looks > 2000 ? no('never') : setTimeout(look, 10);"
            "look(); })"
        )

    def frame(self) -> None:
        """Until what was asked for is drawn."""
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, *keys: str, shift: bool = False) -> None:
        for key in keys:
            about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            about["modifiers"] = SHIFT if shift else 0
            self.call("Input.dispatchKeyEvent", type="rawKeyDown", **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)
        self.frame()

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """On an element, at a share of its width and height."""
        box = self.eval(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            "it.scrollIntoView({block: 'center'}); const b = it.getBoundingClientRect();"
            "return [b.x, b.y, b.width, b.height]; })()"
        )
        place = {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        self.frame()

    def problems(self) -> list[Any]:
        """Errors thrown, errors and warnings logged, and addresses asked for beyond the page."""
        found: list[Any] = []
        for event in self.events:
            name, about = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                found.append(about["exceptionDetails"])
            if name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(about["entry"]["text"])
            if name == "Network.requestWillBeSent":
                url = about["request"]["url"]
                found += [url] if about["type"] != "Document" else []
        return found

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._n_sent += 1
        message: dict[str, Any] = {"id": self._n_sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._n_sent:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = self._answers.read(1 << 16)
            assert part, f"Chromium ended with {self._process.poll()}"
            self._unread += part
        line, self._unread = self._unread.split(b"\0", 1)
        return json.loads(line)


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A browser with one empty page; skips without a browser."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    flags = [flag for flag in FLAGS if not flag.startswith(DUMPING)]
    command = [find_browser(), *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    placed = [sys.executable, "-c", PLACED, str(to_browser), str(from_browser), *command]
    ends = (to_browser, from_browser)
    process = subprocess.Popen(placed, pass_fds=ends, stderr=subprocess.DEVNULL)
    os.close(to_browser)
    os.close(from_browser)
    own = Tab(process, from_us, to_us)
    try:
        yield own
        own._session = None
        own.call("Browser.close")
    finally:
        os.close(from_us)
        process.terminate()
        process.wait(timeout=30)
