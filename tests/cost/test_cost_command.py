"""`attnres cost`: the paper's figures on the screen, the same in JSON, one line where it fails."""

import json
from dataclasses import asdict

import pytest
from call_command import call_command
from transformers import CohereConfig

from attnres.cost import count
from attnres.cost.methods import variants
from attnres.cost.tables import NOT_SAID
from attnres.residual import AttnResConfig
from attnres.train.recipe import ModelConfig

SMALL = ["--layers", "4", "--dim", "64", "--heads", "2", "--kv-heads", "2", "--mlp-dim", "96"]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Exit status, the words of standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: call_command("cost", arguments, capsys)


PAPER = [
    "standard 3 3.00 3 3.00",
    "mHC 8m+2 34.00 8m+2 34.00",
    "Full, naive L+2 130.00 (L+3)/2 65.50",
    "Full, two phases S+N 24.00 (S+N)/2+1 13.00",
    "Block, two phases N/S+5 5.50 (N+1)/(2S)+5 5.28",
    "prefill, finished blocks 8 15 GB",
    "prefill, on each of 8 shards 8 1.88 GB",
    "prefill, on each of 8 shards, chunks of 16,384 8 235 MB",
    "one source a chunk 496 220 2.25",
    "8 blocks 124 55 2.25",
    "training, each layer checkpointed 64.0",
    "parameters of the residual 1,835,008",
]


def test_without_a_model_it_shows_the_figures_of_the_paper(call):
    status, out, err = call("--budget-gb", 17, "--json", "cost.json")
    assert (status, err) == (0, "")
    for words in PAPER:
        assert words in out, words
    assert "recommended: n_blocks=8. n_blocks=8 takes 16.9 GB of sources and n_blocks=9" in out


def test_json_has_what_the_tables_say(call, tmp_path):
    assert call(*SMALL, "--residual", "attn_res", "--budget-percent", 300, "--json", "x")[0] == 0
    found = json.loads((tmp_path / "x").read_text())
    assert found["residual"]["method"] == "attn_res"
    assert found["counted"] == asdict(count(AttnResConfig(), 64, 8))
    assert found["sizes"]["n_sublayers"] == 8
    assert [len(table["rows"]) for table in found["tables"]] == [5, 7, 6, 2]
    assert found["recommended"]["traffic"]["takes"] <= 300


def test_a_model_is_counted_with_the_residual_that_it_has(call, tmp_path):
    residual = AttnResConfig(n_blocks=2)
    model = ModelConfig(dim=32, n_layers=3, n_heads=2, n_kv_heads=2, mlp_dim=48, residual=residual)
    model.build(vocab_size=61, seq_len=16).config.save_pretrained(tmp_path / "model")
    status, out, _ = call("model", "--chunk", 0)
    assert status == 0
    assert "L=6, N=2, m=4" in out
    assert f"parameters of the residual {2 * 6 * 32:,}" in out
    assert "chunks of" not in out


def test_all_methods_stand_beside_each_other(call, tmp_path):
    status, out, _ = call(*SMALL, "--methods", "--json", "methods.json")
    assert status == 0
    for method in variants(8):
        assert f" {method} " in out
    rows = json.loads((tmp_path / "methods.json").read_text())["methods"]
    standard = next(row for row in rows if row["method"] == "standard")
    assert (standard["counted"]["moved"], standard["measured"]["moved"]) == (3, 3)


def test_the_names_of_methods_are_whole_in_80_characters(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = call(*SMALL, "--methods")
    assert status == 0
    assert all(f" {method} " in out for method in variants(8))


def test_layers_of_one_sublayer_are_averaged_one_by_one(call, tmp_path):
    CohereConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, vocab_size=61,
                 num_attention_heads=2, num_key_value_heads=2, bos_token_id=1, eos_token_id=2,
                 ).save_pretrained(tmp_path / "model")  # fmt: skip
    status, out, _ = call("model", "--methods")
    assert status == 0
    assert " denseformer:sublayers_per_layer=1 standard " in out


def test_a_method_without_blocks_holds_its_state(call):
    status, out, _ = call(*SMALL, "--residual", "window:n_last=2", "--chunk", 0)
    assert status == 0
    assert "prefill, the largest state 3 " in out
    assert "blocks, as the paper does" not in out
    assert "Pipeline" not in out


def test_one_chunk_sends_nothing(call):
    status, out, _ = call(*SMALL, "--residual", "attn_res", "--stages", 1, "--virtual", 1)
    assert status == 0
    assert f"8 blocks 0 0 {NOT_SAID}" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no config of a transformers model in nowhere"),
        (["--layers", "0"], "n_layers must be a positive integer, got 0"),
        (["--residual", "mine"], "no residual method 'mine'"),
        (["--layers", "2", "--residual", "attn_res:n_blocks=9"], "n_blocks=9 is more than"),
        (["--tokens", "-1"], "n_tokens must be a positive integer, got -1"),
        (["--stages", "0"], "n_stages must be a positive integer, got 0"),
        (["--budget-gb", "1e-9"], "one block takes"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_what_cannot_be_is_one_line(call, arguments, words):
    status, _, err = call(*SMALL, *arguments)
    assert status == 2
    assert err.startswith("attnres: error: ")
    assert err.count("\n") == 1
    assert words in err
