"""Training data: documents, a held-out part, tokens, and batches that depend on the step alone."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from attnres.cache import cache_folder
from attnres.extras import require
from attnres.train.corpus import embedded_documents, read_documents
from attnres.train.reasoning import is_reasoning, reasoning_documents
from attnres.train.token_cache import load_entry, store_entry
from attnres.train.tokenizer import byte_tokenizer, encode_documents, for_transformers, train_bpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

CACHE_VERSION = 1  # one more wherever the same documents and settings give other tokens
MIN_VOCAB_SIZE = 257  # every byte and end-of-text


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on, and how it becomes tokens.

    Args:
        path: a text, JSON Lines, JSON or Parquet file, or a folder of them; the empty string is
            the corpus embedded in this package; "reasoning:" are questions and answers, as in
            `attnres.train.reasoning`.
        text_column: the column of JSON and Parquet files that holds the text.
        tokenizer: "bpe" is trained on the training documents; "bytes" always has 257 tokens.
        vocab_size: the most tokens a BPE may have; the tokenizer's own length is what it has.
        validation_fraction: held out, about; see `split_documents`.
    """

    path: str = ""
    text_column: str = "text"
    tokenizer: Literal["bpe", "bytes"] = "bpe"
    vocab_size: int = 2048
    validation_fraction: float = 0.05

    def __post_init__(self):
        if not self.text_column:
            raise ValueError("text_column is empty")
        if self.tokenizer not in ("bpe", "bytes"):
            raise ValueError(f"tokenizer is {self.tokenizer!r}, neither 'bpe' nor 'bytes'")
        if self.vocab_size < MIN_VOCAB_SIZE:
            raise ValueError(f"vocab_size is {self.vocab_size}, less than {MIN_VOCAB_SIZE}")
        if not 0 < self.validation_fraction <= 0.5:
            raise ValueError(
                f"validation_fraction is {self.validation_fraction}, not above 0 and at most 0.5"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenData:
    """Documents as tokens: joined, each followed by end-of-text; int32, one dimension.

    `n_validation_bytes` is the held-out text in UTF-8, so that
    bits per byte = nats per token / ln 2 * len(validation_tokens) / n_validation_bytes.
    """

    tokenizer: "PreTrainedTokenizerFast"
    train_tokens: Tensor
    validation_tokens: Tensor
    n_train_documents: int
    n_validation_documents: int
    n_train_bytes: int
    n_validation_bytes: int


def load_data(config: DataConfig) -> TokenData:
    """Read, split, train the tokenizer and encode, or take the last two from the cache."""
    require("training", "train", "tokenizers", "transformers")
    train, validation = split_documents(_documents(config), config.validation_fraction)
    tokenizer, train_tokens, validation_tokens = _tokens(config, train, validation)
    return TokenData(
        tokenizer=for_transformers(tokenizer),
        train_tokens=train_tokens,
        validation_tokens=validation_tokens,
        n_train_documents=len(train),
        n_validation_documents=len(validation),
        n_train_bytes=_n_bytes(train),
        n_validation_bytes=_n_bytes(validation),
    )


def fingerprint(tokens: TokenData) -> str:
    """The sha256 of the training and the held-out tokens."""
    digest = hashlib.sha256(f"{len(tokens.train_tokens)} ".encode())
    for part_T in (tokens.train_tokens, tokens.validation_tokens):
        digest.update(part_T.numpy().data)
    return digest.hexdigest()


def split_documents(documents: Sequence[str], fraction: float) -> tuple[list[str], list[str]]:
    """Training and held-out documents, by place alone: nothing is drawn at random.

    With k = round(1 / fraction), documents k, 2k, 3k, ... are held out, and a training document
    with the very text of a held-out one is left out. Fewer than k documents are each cut in two,
    and the last `fraction` of the characters of each is held out.
    """
    period = round(1 / fraction)
    if len(documents) >= period:
        validation = list(documents[period - 1 :: period])
        held_out = set(validation)
        train = [text for text in documents if text not in held_out]
    else:
        cuts = [len(text) - max(1, round(len(text) * fraction)) for text in documents]
        pairs = list(zip(documents, cuts, strict=True))
        train = [text[:cut] for text, cut in pairs if cut]
        validation = [text[cut:] for text, cut in pairs]
    if not train:
        raise ValueError(f"nothing is left to train on: {len(documents)} documents, all held out")
    return train, validation


def pack(tokens_T: Tensor, seq_len: int) -> Tensor:
    """Whole sequences of `seq_len` tokens, RT; the tokens that do not fill one are dropped."""
    if seq_len < 1:
        raise ValueError(f"seq_len is {seq_len}, less than 1")
    n_sequences = len(tokens_T) // seq_len
    if not n_sequences:
        raise ValueError(f"{len(tokens_T)} tokens are fewer than one sequence: seq_len {seq_len}")
    return tokens_T[: n_sequences * seq_len].view(n_sequences, seq_len)


def batch_at(sequences_RT: Tensor, step: int, batch_size: int, seed: int) -> Tensor:
    """The int64 tokens, BT, of one training step: a pure function of the seed and the step.

    Every sequence comes once an epoch, in an order drawn from (seed, epoch); a batch may run across
    the border of two epochs. The step is the whole state of the data: to resume is to go on
    counting, and nothing else has to be saved.
    """
    if step < 0 or batch_size < 1 or not len(sequences_RT):
        raise ValueError(
            f"no batch: step {step}, batch_size {batch_size}, {len(sequences_RT)} sequences"
        )
    rows: list[Tensor] = []
    place, end = step * batch_size, (step + 1) * batch_size
    while place < end:
        epoch, first = divmod(place, len(sequences_RT))
        part = _order(len(sequences_RT), seed, epoch)[first : first + end - place]
        rows.append(part)
        place += len(part)
    return sequences_RT[torch.cat(rows).to(sequences_RT.device)].long()


def validation_batches(sequences_RT: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Every sequence once, in order, as int64 batches BT; the last may be smaller."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, less than 1")
    for batch_BT in sequences_RT.split(batch_size):
        yield batch_BT.long()


@lru_cache(maxsize=4)
def _order(n_sequences: int, seed: int, epoch: int) -> Tensor:
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    return torch.randperm(n_sequences, generator=generator)


def _documents(config: DataConfig) -> list[str]:
    if is_reasoning(config.path):
        return reasoning_documents(config.path)
    if config.path:
        return read_documents(config.path, config.text_column)
    return [document.text for document in embedded_documents()]


def _tokens(
    config: DataConfig, train: list[str], validation: list[str]
) -> tuple["Tokenizer", Tensor, Tensor]:
    from tokenizers import Tokenizer

    file = cache_folder() / "tokens" / f"{_key(config, train, validation)}.safetensors"
    if (entry := load_entry(file)) is not None:
        tensors, text = entry
        return Tokenizer.from_str(text), tensors["train"], tensors["validation"]
    bpe = config.tokenizer == "bpe"
    tokenizer = train_bpe(train, config.vocab_size) if bpe else byte_tokenizer()
    tensors = {
        "train": encode_documents(tokenizer, train),
        "validation": encode_documents(tokenizer, validation),
    }
    store_entry(file, tensors, tokenizer.to_str())
    return tokenizer, tensors["train"], tensors["validation"]


def _key(config: DataConfig, train: list[str], validation: list[str]) -> str:
    """A name for all that the tokens depend on."""
    import tokenizers

    bpe = config.tokenizer == "bpe"
    settings = {
        "cache": CACHE_VERSION,
        "tokenizers": tokenizers.__version__,
        "tokenizer": config.tokenizer,
        "vocab_size": config.vocab_size if bpe else MIN_VOCAB_SIZE,
        "n_documents": [len(train), len(validation)],
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for text in (*train, *validation):
        data = text.encode()
        digest.update(f"{len(data)} ".encode())
        digest.update(data)
    return digest.hexdigest()


def _n_bytes(documents: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in documents)
