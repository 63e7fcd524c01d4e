"""The implementations of depth attention that the tests compare."""

from attnres.ops import backends
from attnres.ops.backends import LOADERS, Loader, loaded

# Triton's interpreter wants tests of few tokens: it has its own
RUNNING = [backend.name for backend in backends() if backend.runs]
IMPLEMENTATIONS = sorted(set(RUNNING) - {"triton"})
KERNELS = sorted(set(IMPLEMENTATIONS) - {"reference"})


def install(monkeypatch, name: str, fake: object) -> None:
    """Let `impl=name` be `fake` until the test ends."""
    monkeypatch.setitem(LOADERS, name, Loader(lambda: fake, str))  # type: ignore[arg-type]  a fake
    monkeypatch.setitem(loaded, name, fake)
