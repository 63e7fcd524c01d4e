"""The implementations of depth attention that the tests compare, and what asks for a compiler."""

import shutil

import pytest

from attnres.ops import backends, cpu_build
from attnres.ops.backends import LOADERS, Loader, loaded

_FOUND = {backend.name: backend for backend in backends()}
# Triton's interpreter wants tests of few tokens: it has its own
RUNNING = [name for name, backend in _FOUND.items() if backend.runs]
IMPLEMENTATIONS = sorted(set(RUNNING) - {"triton"})
KERNELS = sorted(set(IMPLEMENTATIONS) - {"reference"})


def _has_compiler() -> bool:
    try:
        return shutil.which(cpu_build.compiler()[0]) is not None
    except RuntimeError:
        return False


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="no C++ compiler")
# where there is a compiler, a kernel that does not run is a fault, and the tests say so
needs_cpu_kernel = pytest.mark.skipif(
    not _FOUND["cpu"].runs and not _has_compiler(), reason=_FOUND["cpu"].why
)


def install(monkeypatch, name: str, fake: object) -> None:
    """Let `impl=name` be `fake` until the test ends."""
    monkeypatch.setitem(LOADERS, name, Loader(lambda: fake, str))  # type: ignore[arg-type]  a fake
    monkeypatch.setitem(loaded, name, fake)
