"""The text that a model is shown: a file, or what its run was validated on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres.analysis.explorer.pieces import text_pieces
from attnres.analysis.explorer.subjects import Subject
from attnres.train.corpus import read_documents
from attnres.train.data import load_data

LONGEST_SEQUENCE = 1024  # tokens, of a model that says nothing or more


@dataclass(frozen=True, kw_only=True)
class Text:
    """Sequences of tokens, and the words that each token stands for."""

    sequences: list[Tensor]  # each T
    pieces: list[str]  # one a token, over all sequences
    source: str


def text_of(subject: Subject, model: Any, tokenizer: Any, file: Path | None, n_tokens: int) -> Text:
    """At most `n_tokens`, in sequences as long as those the model was trained on.

    Raises:
        ValueError: no tokenizer, no text of its own and none given, tokens the model has not.
    """
    if tokenizer is None:
        raise ValueError(f"{subject.model} has no tokenizer, so its tokens cannot be shown as text")
    tokens_T, source = _tokens(subject, tokenizer, file, n_tokens)
    if tokens_T.numel() == 0 or int(tokens_T.max()) >= model.config.text_config.vocab_size:
        raise ValueError(
            f"the tokenizer of {subject.model} does not fit the model, or {source} is empty"
        )
    return Text(
        sequences=list(tokens_T.split(_length(subject, model))),
        pieces=text_pieces(tokenizer, tokens_T.tolist()),
        source=source,
    )


def _tokens(
    subject: Subject, tokenizer: Any, file: Path | None, n_tokens: int
) -> tuple[Tensor, str]:
    if file is not None:
        return _encoded(tokenizer, read_documents(file), n_tokens), str(file.name)
    if subject.run is None:
        raise ValueError(f"{subject.model} is no run, which would have a text: give --text FILE")
    try:
        data = load_data(subject.run.data)
    except FileNotFoundError as error:
        raise ValueError(f"{error}; to show another text, give --text FILE") from error
    return data.validation_tokens[:n_tokens].long(), "held-out text of the run"


def _encoded(tokenizer: Any, documents: Sequence[str], n_tokens: int) -> Tensor:
    tokens: list[int] = []
    for document in documents:
        tokens += tokenizer(document, add_special_tokens=False)["input_ids"]
        if len(tokens) >= n_tokens:
            break
    return torch.tensor(tokens[:n_tokens], dtype=torch.long)


def _length(subject: Subject, model: Any) -> int:
    if subject.run is not None:
        return subject.run.seq_len
    most = getattr(model.config.text_config, "max_position_embeddings", None)
    return min(most or LONGEST_SEQUENCE, LONGEST_SEQUENCE)
