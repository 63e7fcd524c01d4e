"""Folders of saved models, spoiled: a model, or one line; nothing is written and nothing else read.

The folder is what `save_pretrained` wrote, of a plain model and of one of ours.
"""

import json
import shutil
import struct

import pytest
import torch
from drawn import JSON, LEFT_OUT, assert_one_line, changed, little_memory, paths_in, snapshot
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.pretrained import load_pretrained

LARGE = st.sampled_from([0, 1, 2**31, 2**40, 2**62, 2**64 - 1])
DTYPES = st.sampled_from(["F32", "F64", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X"])
LLAMA = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "tie_word_embeddings": False,
}
few = settings(max_examples=25)
OUTSIDE = ["../secret.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "\0", 1, None, []]


@pytest.fixture(scope="module", params=["plain", "ours"])
def whole(request, tmp_path_factory):
    torch.manual_seed(0)
    folder, config = tmp_path_factory.mktemp("saved") / request.param, LlamaConfig(**LLAMA)
    ours = AttnResCausalLMConfig(text_config=config, residual="attn_res:n_blocks=2")
    plain = request.param == "plain"
    model = LlamaForCausalLM(config) if plain else AttnResForCausalLM(ours)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def spoiled(whole, tmp_path):
    def spoil(name, data):
        path = tmp_path / "model"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        (path / name).write_bytes(data)
        return path

    return spoil


def check(path):
    """Whether it was loaded."""
    before = snapshot(path.parent)
    try:
        with little_memory():
            load_pretrained(path)
    except ValueError as error:
        assert_one_line(error, path)
        return False
    finally:
        assert snapshot(path.parent) == before
    return True


def test_what_was_saved_is_loaded(whole):
    assert check(whole)


@few
@given(where=st.integers(0, 3000), byte=st.integers(0, 255))
def test_a_byte_of_the_header_that_is_another(whole, spoiled, where, byte):
    data = bytearray((whole / "model.safetensors").read_bytes())
    data[where % (8 + struct.unpack("<Q", data[:8])[0])] = byte
    check(spoiled("model.safetensors", bytes(data)))


@few
@given(size=LARGE, length=st.integers(0, 3000))
def test_a_header_of_another_length_and_a_file_that_is_cut_off(whole, spoiled, size, length):
    data = (whole / "model.safetensors").read_bytes()
    assert not check(spoiled("model.safetensors", struct.pack("<Q", size) + data[8:]))
    assert not check(spoiled("model.safetensors", data[:length]))


@few
@given(
    place=st.integers(0, 200),
    value=JSON | LARGE | DTYPES | st.lists(LARGE, max_size=3) | st.just(LEFT_OUT),
)
def test_a_header_that_says_something_else(whole, spoiled, place, value):
    data = (whole / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    paths = paths_in(header)
    text = json.dumps(changed(header, paths[place % len(paths)], value)).encode()
    check(spoiled("model.safetensors", struct.pack("<Q", len(text)) + text + data[8 + size :]))


@settings(max_examples=60)
@given(place=st.integers(0, 200), value=JSON | LARGE | st.just(LEFT_OUT))
@example(place=0, value=[])
def test_a_config_that_says_something_else(whole, spoiled, place, value):
    config = json.loads((whole / "config.json").read_text())
    paths = paths_in(config)
    check(
        spoiled(
            "config.json", json.dumps(changed(config, paths[place % len(paths)], value)).encode()
        )
    )


def test_a_config_of_more_layers_than_tensors_makes_none_of_them(whole, spoiled):
    config = json.loads((whole / "config.json").read_text())
    config.get("text_config", config)["num_hidden_layers"] = 50_000
    path = spoiled("config.json", json.dumps(config).encode())
    for load in (load_pretrained, AttnResForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=r"has num_hidden_layers=50000, but \d+ tensors"):
            load(path)


@few
@given(text=st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()))
@example(text=b"[" * 100_000)
def test_a_config_that_is_none(spoiled, text):
    assert not check(spoiled("config.json", text))


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_names_files_beside_it_alone(whole, spoiled, name):
    (whole.parent / "secret.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    path = spoiled("model.safetensors.index.json", json.dumps(index).encode())
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json names"):
        load_pretrained(path)
    with pytest.raises(ValueError, match=r"index\.json names"):
        AttnResForCausalLM.from_pretrained(path, residual="attn_res")


@few
@given(index=JSON | st.fixed_dictionaries({"weight_map": JSON}))
def test_an_index_that_is_none(spoiled, index):
    path = spoiled("model.safetensors.index.json", json.dumps(index).encode())
    (path / "model.safetensors").unlink()
    assert not check(path)
