"""Set before torch is imported: no stale compile cache, no network, Triton without a GPU."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # two workers on two cores
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # docs/faq.md, "Is it slow?"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# of the programs that tests start; pyproject.toml has the same for the tests themselves
os.environ["PYTHONWARNINGS"] = "ignore:depth attention on cpu runs in plain PyTorch"
if os.environ.get("ATTNRES_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton's kernels run on CPU tensors

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt what they start

import pytest
from one_case import pytest_addoption, pytest_collection_modifyitems  # noqa: F401  pytest's hooks


@pytest.fixture(autouse=True)
def _seed() -> None:
    """What a test draws does not depend on those before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A small text file; what is made of it stays in `tmp_path`."""
    from tiny_runs import write_text

    from attnres.cache import cache_folder

    (tmp_path / "cache").mkdir()
    for kernel in cache_folder().glob("cpu-*.so"):  # a compiler takes long, and each process asks
        (tmp_path / "cache" / kernel.name).symlink_to(kernel.resolve())
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    return write_text(tmp_path / "words.txt")


@pytest.fixture
def filled(monkeypatch) -> list[bool]:
    """One entry each time that a reader fills a buffer: whether another had written it."""
    from attnres.ops import gradient_sink

    found: list[bool] = []
    original = gradient_sink.buffer_of

    def noting(owner, like):
        buffer, is_written = original(owner, like)
        found.append(is_written)
        return buffer, is_written

    monkeypatch.setattr(gradient_sink, "buffer_of", noting)
    return found
