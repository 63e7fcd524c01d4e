"""A rank of a pipeline reads of a saved model what it holds, in whatever form it was saved."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_rank_part import chunks_of
from tiny_families import FAMILIES, build, config, plain

from attnres.distributed.rank_part import RankPart
from attnres.distributed.saved_weights import load_weights
from attnres.models import AttnResForCausalLM

EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3", "kimi_linear")  # saved one by one, then stacked


def parts(made: Any) -> list[RankPart]:
    cuts = (1, 2) if made.n_sublayers == 3 else (3, 4)  # in the middle of a layer
    return [RankPart(made, chunks_of(made, cuts), rank) for rank in range(3)]


def assert_reads_its_own(part: RankPart, folder: Any, whole: Any) -> None:
    with torch.no_grad():
        for tensor in (*part.model.parameters(), *part.model.buffers()):
            tensor.zero_()
    load_weights(part, folder)
    expected = whole.state_dict()
    for name, tensor in part.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_weights_are_read_by_those_who_hold_them(family, tmp_path):
    whole = build(family)
    whole.save_pretrained(tmp_path)
    for part in parts(whole.config):
        assert_reads_its_own(part, tmp_path, whole)


def test_experts_are_saved_in_another_form_than_they_are_held(tmp_path):
    for family in EXPERTS:
        whole = build(family)
        whole.save_pretrained(tmp_path / family)
        saved = load_file(tmp_path / family / "model.safetensors")
        held = set(whole.state_dict())
        assert any("experts.0." in name for name in saved.keys() - held)


@pytest.mark.parametrize("max_shard_size", ["5GB", "40KB"], ids=["one file", "many"])
def test_a_tied_head_is_read_by_both_who_hold_it(tmp_path, max_shard_size):
    whole = build("llama", tie_word_embeddings=True)
    whole.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    held = parts(whole.config)
    for part in held:
        assert_reads_its_own(part, tmp_path, whole)
    last = held[-1].model
    assert last.get_output_embeddings().weight is last.get_input_embeddings().weight


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_neox"])
def test_readers_that_a_plain_checkpoint_lacks_stay(family, tmp_path):
    model = plain(family)
    model.save_pretrained(tmp_path)
    expected = AttnResForCausalLM.from_pretrained(tmp_path, residual=config(family).residual)
    for part in parts(expected.config):
        load_weights(part, tmp_path)
        for name, tensor in part.model.state_dict().items():
            assert torch.equal(tensor, expected.state_dict()[name]), name


def test_weights_that_lack_or_do_not_fit_are_named(tmp_path):
    build("llama").save_pretrained(tmp_path)
    wider = config("llama", intermediate_size=64)
    with pytest.raises(ValueError, match=r"has shape \[32, 48\], by the config it has \[32, 64\]"):
        load_weights(parts(wider)[0], tmp_path)
    with pytest.raises(ValueError, match="no weights at"):
        load_weights(parts(wider)[0], tmp_path / "nowhere")
    file = tmp_path / "model.safetensors"
    saved = load_file(file)
    for name in ("residual.readers.5.query", "model.layers.2.mlp.up_proj.weight"):
        save_file({each: saved[each] for each in saved if each != name}, file, {"format": "pt"})
        with pytest.raises(ValueError, match=f"lacks {name}, which the model has"):
            load_weights(parts(config("llama"))[2], tmp_path)


def test_weights_of_another_function_are_refused(tmp_path):
    build("llama").save_pretrained(tmp_path)
    deeper = config("llama", num_hidden_layers=4)
    with pytest.raises(ValueError, match="has num_hidden_layers=3, but text_config has 4"):
        load_weights(parts(deeper)[0], tmp_path)
    full = config("llama", "full")
    with pytest.raises(ValueError, match="layout"):
        load_weights(parts(full)[0], tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    build("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read: "):
        load_weights(parts(config("llama"))[0], tmp_path)
