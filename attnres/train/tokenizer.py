"""Two tokenizers that give back any UTF-8 text exactly: a byte-level BPE, and plain bytes."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PIECE_CHARACTERS = 1 << 16  # what `tokenizers` keeps for a piece is hundreds of times its text


def train_bpe(documents: Sequence[str], vocab_size: int) -> "Tokenizer":
    """A byte-level BPE: end-of-text (id 0), 256 bytes, then merges, up to `vocab_size` tokens.

    Small or repetitive documents run out of merges; the vocabulary is then smaller.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def byte_tokenizer() -> "Tokenizer":
    """Each byte of the UTF-8 text is the token of its value; end-of-text is token 256."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def for_transformers(tokenizer: "Tokenizer") -> "PreTrainedTokenizerFast":
    """The same tokenizer with the interface of transformers, to be saved beside a model."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def encode_documents(tokenizer: "Tokenizer", documents: Sequence[str]) -> Tensor:
    """The tokens of all documents in one row, int32, each document followed by end-of-text.

    End-of-text written out inside a document is encoded as the characters it is made of.
    """
    from tokenizers import Tokenizer

    literal = Tokenizer.from_str(tokenizer.to_str())
    literal.encode_special_tokens = True
    end = np.array([tokenizer.token_to_id(END_OF_TEXT)], np.int32)
    parts: list[np.ndarray] = []
    for document in documents:
        for batch in _batches(list(_pieces(document)), size=16):
            encodings = literal.encode_batch_fast(batch, add_special_tokens=False)
            parts += [np.array(encoding.ids, np.int32) for encoding in encodings]
        parts.append(end)
    return torch.from_numpy(np.concatenate(parts))


def _pieces(document: str) -> Iterator[str]:
    """Cut before a lone space between words, which no token of either tokenizer reaches across."""
    start = 0
    for gap in re.finditer(r"(?<=\S) (?=\S)", document):
        if gap.start() - start >= PIECE_CHARACTERS:
            yield document[start : gap.start()]
            start = gap.start()
    yield document[start:]


def _batches(pieces: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(pieces), size):
        yield pieces[first : first + size]
