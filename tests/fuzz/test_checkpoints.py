"""Checkpoints of strangers: what was saved, or one line, and nothing is changed.

Each is signed anew after it was spoiled: sums keep out damage, not intent.
"""

import json
import shutil
import struct

import pytest
import torch
from drawn import JSON, LEFT_OUT, assert_one_line, changed, little_memory, paths_in, snapshot
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn

from attnres.train import checkpoint, sharded

TENSORS = ("model.safetensors", "optimizer.safetensors", "rng.safetensors")
LARGE = st.sampled_from([0, 1, 2**31, 2**40, 2**62, 2**64 - 1])
DTYPES = st.sampled_from(["F32", "F64", "BF16", "F16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X"])
SHARDS = json.dumps({"bias": {"saved_offsets": [2**40]}, "weight": {"saved_offsets": [0, 2**40]}})
LOADS = {
    "one process": lambda path, model, optimizers: checkpoint.load(path, model, optimizers),
    "many": lambda path, model, optimizers: sharded.load(path, model, optimizers),
}
every_way = pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)


def made():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, [torch.optim.AdamW(model.parameters(), lr=0.1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    model, (optimizer,) = made()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    return checkpoint.save(folder, 1, model, [optimizer], {})


@pytest.fixture
def spoiled(whole, tmp_path):
    """A copy in which one file is another, signed."""

    def spoil(name, data):
        path = tmp_path / "step-00000001"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        (path / name).write_bytes(data)
        if name != "manifest.json":
            entries = {each: checkpoint.entry_of(path / each) for each in checkpoint.FILES}
            checkpoint.write_manifest(path, checkpoint.FORMAT, entries)
        return path

    return spoil


def header_of(data):
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def with_header(header, rest, size=None):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + rest


def check(load, path):
    """Loaded whole, or refused in a line with nothing changed; it says which."""
    model, optimizers = made()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    files, rng = snapshot(path), torch.get_rng_state()
    try:
        with little_memory():
            load(path, model, optimizers)
    except ValueError as error:
        assert_one_line(error, path)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert not optimizers[0].state
        assert torch.equal(torch.get_rng_state(), rng)
        return False
    finally:
        assert snapshot(path) == files
    return True


@every_way
def test_what_was_saved_is_loaded(load, whole):
    assert check(load, whole)


@every_way
@given(name=st.sampled_from(TENSORS), where=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_byte_that_is_another(load, whole, spoiled, name, where, byte):
    data = bytearray((whole / name).read_bytes())
    header_bytes = 8 + struct.unpack("<Q", data[:8])[0]
    data[where % header_bytes] = byte
    check(load, spoiled(name, bytes(data)))


@every_way
@given(name=st.sampled_from(TENSORS), size=LARGE | st.integers(0, 500))
def test_a_header_of_another_length(load, whole, spoiled, name, size):
    header, rest = header_of((whole / name).read_bytes())
    data = with_header(header, rest, size)
    assume(data != (whole / name).read_bytes())
    check(load, spoiled(name, data))


@every_way
@given(name=st.sampled_from(TENSORS), length=st.integers(0, 600))
def test_a_file_that_is_cut_off(load, whole, spoiled, name, length):
    data = (whole / name).read_bytes()
    assume(length < len(data))
    assert not check(load, spoiled(name, data[:length]))


@every_way
@given(
    name=st.sampled_from(TENSORS),
    place=st.integers(0, 100),
    value=JSON | LARGE | DTYPES | st.lists(LARGE, max_size=3) | st.just(LEFT_OUT),
)
def test_a_header_that_says_something_else(load, whole, spoiled, name, place, value):
    header, rest = header_of((whole / name).read_bytes())
    paths = paths_in(header)
    path = paths[place % len(paths)]
    try:
        data = with_header(changed(header, path, value), rest)
    except ValueError:  # what JSON cannot say
        return
    check(load, spoiled(name, data))


@every_way
@given(name=st.sampled_from(TENSORS), place=st.integers(0, 100), new=st.text(max_size=8))
@example(name="optimizer.safetensors", place=1, new="1/weight/step")
@example(name="optimizer.safetensors", place=1, new="0/weight/other")
def test_a_tensor_of_another_name(load, whole, spoiled, name, place, new):
    header, rest = header_of((whole / name).read_bytes())
    names = [each for each in header if each != "__metadata__"]
    old = names[place % len(names)]
    assume(new not in header)
    header[new] = header.pop(old)
    assert not check(load, spoiled(name, with_header(header, rest)))


@every_way
@given(members=JSON)
@example(members=[{"type": "AdamW", "params": "weight"}])
@example(members=[{"type": "AdamW", "params": [1]}])
def test_other_optimizers(load, whole, spoiled, members):
    header, rest = header_of((whole / "optimizer.safetensors").read_bytes())
    header["__metadata__"] = {"optimizers": json.dumps(members)}
    assert not check(load, spoiled("optimizer.safetensors", with_header(header, rest)))


@every_way
@given(state=JSON | st.fixed_dictionaries({"step": JSON}))
@example(state={"step": 10**30})
def test_another_state(load, spoiled, state):
    check(load, spoiled("state.json", json.dumps(state).encode()))


@given(place=st.integers(0, 100), value=JSON | st.just(LEFT_OUT))
@example(place=0, value=2)
def test_another_manifest(whole, spoiled, place, value):
    manifest = json.loads((whole / "manifest.json").read_text())
    paths = paths_in(manifest)
    data = json.dumps(changed(manifest, paths[place % len(paths)], value)).encode()
    path = spoiled("manifest.json", data)
    what = checkpoint.damage(path)
    assert what is None or len(what.splitlines()) == 1
    assert what is not None or json.loads(data)["format"] in (1, 2)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ".", "", "a/../../b", "a\\b"])
def test_a_manifest_names_files_beside_it_alone(whole, spoiled, name):
    manifest = json.loads((whole / "manifest.json").read_text())
    manifest["format"] = checkpoint.SHARDED
    manifest["files"][name] = {"size_bytes": 1, "sha256": ""}
    what = checkpoint.damage(spoiled("manifest.json", json.dumps(manifest).encode()))
    assert "manifest.json names" in str(what), what


@pytest.mark.parametrize("offsets", [[1, 0], [0, 1], [3, 3]])
def test_parts_that_leave_a_gap_are_refused(whole, spoiled, offsets):
    """torch would leave what no part covers as it was."""
    header, rest = header_of((whole / "model.safetensors").read_bytes())
    own = header["weight"]["shape"]
    header["weight"]["shape"] = [1, own[0] * own[1]]
    parts = {name: {"saved_offsets": [0] * len(each["shape"])} for name, each in header.items()
             if name != "__metadata__"}  # fmt: skip
    parts["weight"]["saved_offsets"] = offsets
    header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(parts)}
    path = spoiled("model.safetensors", with_header(header, rest))
    assert not check(LOADS["many"], path)
    with pytest.raises(ValueError, match="the parts of weight are not the whole of it"):
        sharded.read_weights(path)


def test_what_torch_says_of_parts_that_do_not_fit_is_one_line(whole, monkeypatch):
    def misfit(*arguments):
        raise AssertionError("req 0 mismatch sizes")

    monkeypatch.setattr(sharded.HuggingFaceStorageReader, "read_data", misfit)
    with pytest.raises(ValueError, match="parts of its tensors do not fit: req 0 mismatch sizes"):
        sharded.load(whole, *made())


@pytest.mark.parametrize("part", ["model.safetensors", "optimizer.safetensors"])
def test_a_part_far_beyond_its_tensor_takes_no_memory(whole, spoiled, part):
    header, rest = header_of((whole / part).read_bytes())
    offsets = {name: {"saved_offsets": [2**40] * len(each["shape"])}
               for name, each in header.items() if name != "__metadata__"}  # fmt: skip
    header.setdefault("__metadata__", {})["DCP_SHARDING_INFO"] = json.dumps(offsets)
    assert not check(LOADS["many"], spoiled(part, with_header(header, rest)))
