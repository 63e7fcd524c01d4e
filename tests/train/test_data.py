"""Data is split by place, cached by content, and batched by seed and step alone."""

import subprocess
import sys

import pytest
import torch

from attnres.train import data as module
from attnres.train.data import (
    DataConfig,
    batch_at,
    load_data,
    pack,
    split_documents,
    validation_batches,
)
from attnres.train.token_cache import load_entry
from attnres.train.tokenizer import END_OF_TEXT

pytest.importorskip("transformers")
pytest.importorskip("datasets")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNRES_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    for place in range(10):
        (folder / f"{place}.txt").write_text(f"document {place} of the whale and the sea, é\n" * 3)
    return folder


@pytest.fixture
def config(folder, cache):
    return DataConfig(path=str(folder), vocab_size=280, validation_fraction=0.2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", "words"),
        ("vocab_size", 256),
        ("validation_fraction", 0.0),
        ("validation_fraction", 0.6),
        ("validation_fraction", float("nan")),
        ("text_column", ""),
    ],
)
def test_bad_config_is_refused_with_its_value(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*{value}"):
        DataConfig(**{name: value})


def test_every_kth_document_is_held_out():
    documents = [f"document {place}" for place in range(1, 11)]
    train, validation = split_documents(documents, 0.25)
    assert validation == ["document 4", "document 8"]
    assert train == [text for text in documents if text not in validation]


def test_a_held_out_text_is_nowhere_in_training():
    assert split_documents(["a", "b", "b", "c"], 0.5) == (["a"], ["b", "c"])
    with pytest.raises(ValueError, match="nothing is left to train on: 4 documents"):
        split_documents(["a"] * 4, 0.5)


def test_of_few_documents_the_tails_are_held_out():
    assert split_documents(["0123456789", "abcde"], 0.2) == (["01234567", "abcd"], ["89", "e"])
    assert split_documents(["0123456789", "a"], 0.2) == (["01234567"], ["89", "a"])
    with pytest.raises(ValueError, match="nothing is left to train on: 1 documents"):
        split_documents(["a"], 0.05)


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_load_data_gives_back_the_documents(folder, cache, kind):
    data = load_data(DataConfig(path=str(folder), tokenizer=kind, validation_fraction=0.2))
    texts = [file.read_text() for file in sorted(folder.iterdir())]
    held_out = [texts[4], texts[9]]
    assert data.tokenizer.decode(data.validation_tokens) == "".join(
        t + END_OF_TEXT for t in held_out
    )
    train = [text for text in texts if text not in held_out]
    assert data.tokenizer.decode(data.train_tokens) == "".join(t + END_OF_TEXT for t in train)
    assert (data.n_train_documents, data.n_validation_documents) == (8, 2)
    assert data.n_train_bytes == sum(len(text.encode()) for text in train)
    assert data.n_validation_bytes == sum(len(text.encode()) for text in held_out)
    assert data.train_tokens.dtype == torch.int32


def test_the_tokenizer_never_sees_held_out_text(config, folder):
    before = load_data(config)
    (folder / "9.txt").write_text("zyzzyva " * 100)
    after = load_data(config)
    assert before.tokenizer.get_vocab() == after.tokenizer.get_vocab()
    assert not torch.equal(before.validation_tokens, after.validation_tokens)


def test_the_empty_path_is_the_embedded_corpus(cache, monkeypatch):
    documents = module.embedded_documents()[:40]
    monkeypatch.setattr(module, "embedded_documents", lambda: documents)
    data = load_data(DataConfig(tokenizer="bytes"))
    assert (data.n_train_documents, data.n_validation_documents) == (38, 2)
    text = "".join(documents[place].text + END_OF_TEXT for place in (19, 39))
    assert data.tokenizer.decode(data.validation_tokens) == text


def test_a_second_load_takes_tokens_and_tokenizer_from_the_cache(config, cache, monkeypatch):
    first = load_data(config)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.delattr(module, "train_bpe")
    monkeypatch.delattr(module, "encode_documents")
    second = load_data(config)
    assert torch.equal(first.train_tokens, second.train_tokens)
    assert torch.equal(first.validation_tokens, second.validation_tokens)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()


def test_a_damaged_cache_entry_is_rebuilt(config, cache):
    first = load_data(config)
    (entry,) = cache.iterdir()
    good = entry.read_bytes()
    damaged = bytearray(good)
    damaged[-1] ^= 1
    for bad in (bytes(damaged), good[:-10], b""):
        entry.write_bytes(bad)
        again = load_data(config)
        assert torch.equal(first.train_tokens, again.train_tokens)
        assert torch.equal(first.validation_tokens, again.validation_tokens)
        assert load_entry(entry) is not None


def test_whatever_changes_the_tokens_changes_the_entry(config, cache, folder, monkeypatch):
    def n_entries(**changes):
        load_data(DataConfig(**{**vars(config), **changes}))
        return len(list(cache.iterdir()))

    assert n_entries() == 1
    assert n_entries(vocab_size=281) == 2
    assert n_entries(validation_fraction=0.5) == 3
    assert n_entries(tokenizer="bytes") == 4
    assert n_entries(tokenizer="bytes", vocab_size=999) == 4
    (folder / "0.txt").write_text("another document 0")
    assert n_entries() == 5
    monkeypatch.setattr(module, "CACHE_VERSION", -1)
    assert n_entries() == 6
    monkeypatch.setattr("tokenizers.__version__", "0")
    assert n_entries() == 7


def test_the_place_of_the_split_is_part_of_the_key():
    after_two = module._key(DataConfig(), ["a", "b"], ["c"])
    assert after_two != module._key(DataConfig(), ["a"], ["b", "c"])


def test_pack_keeps_whole_sequences():
    assert pack(torch.arange(7), 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="7 tokens are fewer than one sequence: seq_len 8"):
        pack(torch.arange(7), 8)
    with pytest.raises(ValueError, match="seq_len is 0"):
        pack(torch.arange(7), 0)


@pytest.mark.parametrize(("n_sequences", "batch_size"), [(7, 3), (8, 2), (3, 7), (1, 4)])
def test_every_sequence_comes_once_an_epoch(n_sequences, batch_size):
    sequences_RT = torch.arange(n_sequences, dtype=torch.int32)[:, None]
    batches = [batch_at(sequences_RT, step, batch_size, seed=5) for step in range(3 * n_sequences)]
    assert all(batch_BT.shape == (batch_size, 1) for batch_BT in batches)
    epochs = torch.cat(batches).view(-1, n_sequences).tolist()
    assert len(epochs) == 3 * batch_size
    assert all(sorted(epoch) == list(range(n_sequences)) for epoch in epochs)


def test_a_batch_is_a_function_of_seed_and_step():
    sequences_RT = torch.arange(60, dtype=torch.int32).view(30, 2)
    forward = [batch_at(sequences_RT, step, 4, seed=1) for step in range(20)]
    module._order.cache_clear()
    torch.manual_seed(123)
    batch_at(sequences_RT, 3, 5, seed=2)
    backward = [batch_at(sequences_RT, step, 4, seed=1) for step in reversed(range(20))]
    assert torch.equal(torch.stack(forward), torch.stack(backward[::-1]))
    assert forward[0].dtype == torch.int64


def test_seeds_and_epochs_have_orders_of_their_own():
    sequences_RT = torch.arange(100, dtype=torch.int32)[:, None]
    orders = {
        tuple(batch_at(sequences_RT, epoch, 100, seed).flatten().tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16


def test_the_order_is_the_same_in_another_process():
    code = (
        "import torch; from attnres.train.data import batch_at;"
        "print(batch_at(torch.arange(50)[:, None], 7, 4, 3).flatten().tolist())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    here = batch_at(torch.arange(50)[:, None], 7, 4, 3).flatten().tolist()
    assert result.stdout.strip() == str(here), result.stderr


def test_batches_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    batch_at(torch.arange(50)[:, None], 7, 4, 3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("n", "step", "batch_size"), [(0, 0, 1), (3, -1, 1), (3, 0, 0)])
def test_no_batch_of_nothing(n, step, batch_size):
    with pytest.raises(ValueError, match=f"step {step}, batch_size {batch_size}, {n} sequences"):
        batch_at(torch.zeros(n, 2), step, batch_size, seed=0)


def test_validation_batches_are_all_in_order():
    sequences_RT = torch.arange(14, dtype=torch.int32).view(7, 2)
    batches = list(validation_batches(sequences_RT, 3))
    assert [len(batch_BT) for batch_BT in batches] == [3, 3, 1]
    assert torch.equal(torch.cat(batches), sequences_RT.long())
    assert batches[0].dtype == torch.int64
    with pytest.raises(ValueError, match="batch_size is 0"):
        list(validation_batches(sequences_RT, 0))
