"""Both tokenizers give every text back, also after they were saved and loaded again."""

import random

import pytest

from attnres.train import tokenizer as module
from attnres.train.tokenizer import (
    END_OF_TEXT,
    byte_tokenizer,
    encode_documents,
    for_transformers,
    train_bpe,
)

transformers = pytest.importorskip("transformers")

DOCUMENTS = ["the whale and the sea and the ship  \n" * 5, "it's the white whale, 1851.\t" * 5]
HARD = (
    " 😀👩‍👩‍👧 tabs\t\there  two  spaces \n\n\r\n nb\u00a0sp <0x41> 漢字"
    " it's\x1c\x85\u2028 e\u0301 x "
)


@pytest.fixture(params=["bpe", "bytes"])
def tokenizer(request):
    return train_bpe(DOCUMENTS, 300) if request.param == "bpe" else byte_tokenizer()


def test_round_trip(tokenizer):
    fast = for_transformers(tokenizer)
    for text in (HARD, *DOCUMENTS, "", " ", "\n"):
        assert fast.decode(fast.encode(text)) == text


def test_reloaded_by_auto_tokenizer(tokenizer, tmp_path):
    fast = for_transformers(tokenizer)
    fast.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode(HARD) == fast.encode(HARD)
    assert again.decode(again.encode(HARD)) == HARD
    assert len(again) == len(fast)
    assert again.eos_token_id == fast.eos_token_id == tokenizer.token_to_id(END_OF_TEXT)


def test_bytes_are_bytes():
    tokenizer = byte_tokenizer()
    assert tokenizer.get_vocab_size() == 257
    assert tokenizer.encode(HARD).ids == list(HARD.encode())
    assert tokenizer.token_to_id(END_OF_TEXT) == 256


def test_bpe_is_the_same_each_time_and_merges():
    tokenizer = train_bpe(DOCUMENTS, 280)
    assert tokenizer.to_str() == train_bpe(DOCUMENTS, 280).to_str()
    assert tokenizer.get_vocab_size() == 280
    assert 280 < train_bpe(DOCUMENTS, 10_000).get_vocab_size() < 300
    assert len(tokenizer.encode(DOCUMENTS[0]).ids) < len(DOCUMENTS[0]) / 2


def test_documents_end_in_end_of_text(tokenizer):
    tokens_T = encode_documents(tokenizer, DOCUMENTS)
    end = [tokenizer.token_to_id(END_OF_TEXT)]
    expected = [tokenizer.encode(text).ids + end for text in DOCUMENTS]
    assert tokens_T.tolist() == expected[0] + expected[1]


def test_a_document_cannot_end_itself(tokenizer):
    tokens = encode_documents(tokenizer, [f"a{END_OF_TEXT}b"]).tolist()
    assert tokens.count(tokenizer.token_to_id(END_OF_TEXT)) == 1
    assert tokenizer.decode(tokens[:-1]) == f"a{END_OF_TEXT}b"
    assert tokenizer.encode(END_OF_TEXT).ids == [tokenizer.token_to_id(END_OF_TEXT)]


def test_pieces_change_no_token(tokenizer, monkeypatch):
    draw = random.Random(0)
    texts = ["".join(draw.choices("the ab's1.\n\t é漢\u00a0\u3000", k=80)) for _ in range(50)]
    whole = encode_documents(tokenizer, texts)
    monkeypatch.setattr(module, "PIECE_CHARACTERS", 3)
    assert len(list(module._pieces("the sea and the ship"))) > 2
    assert encode_documents(tokenizer, texts).tolist() == whole.tolist()
