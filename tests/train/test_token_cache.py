"""An entry comes back as it went in, or not at all."""

from pathlib import Path

import pytest
import torch

from attnres.cache import cache_folder
from attnres.train.token_cache import load_entry, store_entry

pytest.importorskip("safetensors")


@pytest.fixture
def entry(tmp_path):
    file = tmp_path / "folder" / "entry.safetensors"
    store_entry(file, {"a": torch.arange(5, dtype=torch.int32), "b": torch.zeros(0)}, "text 😀")
    return file


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ATTNRES_CACHE", "~/own")
    assert cache_folder() == Path("/home/someone/own")
    monkeypatch.setenv("ATTNRES_CACHE", "")
    assert cache_folder() == Path("/xdg/attnres")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/attnres")


def test_an_entry_comes_back(entry):
    loaded = load_entry(entry)
    assert loaded is not None
    tensors, text = loaded
    assert text == "text 😀"
    assert tensors["a"].tolist() == [0, 1, 2, 3, 4]
    assert tensors["a"].dtype == torch.int32
    assert tensors["b"].shape == (0,)


def test_an_absent_entry_is_none(tmp_path):
    assert load_entry(tmp_path / "absent.safetensors") is None


def test_no_changed_byte_is_believed(entry):
    data = entry.read_bytes()
    tensors = {"a": torch.arange(5, dtype=torch.int32), "b": torch.zeros(0)}
    for place in range(len(data)):
        entry.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        loaded = load_entry(entry)
        if loaded is not None:  # a changed byte of padding changes nothing
            assert loaded[1] == "text 😀", place
            assert loaded[0].keys() == tensors.keys(), place
            assert all(torch.equal(loaded[0][name], tensors[name]) for name in tensors), place


def test_a_short_entry_is_none(entry):
    data = entry.read_bytes()
    for length in (0, 4, 8, len(data) // 2, len(data) - 1):
        entry.write_bytes(data[:length])
        assert load_entry(entry) is None, length


def test_a_failed_write_leaves_the_old_entry_alone(entry, monkeypatch):
    data = entry.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("attnres.train.token_cache.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        store_entry(entry, {"a": torch.ones(3)}, "new")
    assert entry.read_bytes() == data
    assert list(entry.parent.iterdir()) == [entry]
