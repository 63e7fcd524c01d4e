"""Folders of runs or models -> the page: load, read the text, write."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnres.analysis.ablate import ablate
from attnres.analysis.explorer.page import LARGEST_PAGE_BYTES, Explored, page_bytes, render
from attnres.analysis.explorer.reading import Reading, read_text
from attnres.analysis.explorer.subjects import Subject, find_subjects
from attnres.analysis.explorer.texts import Text, text_of
from attnres.train.run_folder import write_atomically

Say = Callable[[str], None]


def write_explorer(
    folders: Sequence[Path],
    output: Path,
    *,
    n_tokens: int = 2000,
    text: Path | None = None,
    measure_effects: bool = False,
    say: Say = print,
) -> None:
    """Write one page on all runs and models in the folders, whole or not at all.

    Args:
        folders: of an experiment, of a finished run, or of a saved model.
        output: the HTML file.
        n_tokens: the most tokens of a text.
        text: a file to show every model; otherwise each run shows its own held-out text.
        measure_effects: take every source and layer away on this text, which is slow; otherwise
            what `attnres ablate` left in the folder of a run is shown, where it did.
        say: is told what is done, a line a model.

    Raises:
        ValueError: nothing to explore, a text or model that does not fit, too large a page.
    """
    if n_tokens < 1:
        raise ValueError(f"n_tokens is at least 1, got {n_tokens}")
    explored = []
    for subject in find_subjects(folders):
        explored.append(_explore(subject, text, n_tokens, measure_effects))
        say(_words(explored[-1]))
        _check_size(explored)
    title = ", ".join(folder.resolve().name for folder in folders)
    write_atomically(output, render(title, explored))


def _explore(subject: Subject, file: Path | None, n_tokens: int, measures: bool) -> Explored:
    from attnres.models.pretrained import load_pretrained

    model, tokenizer = load_pretrained(subject.model)
    if not hasattr(model, "residual"):
        raise ValueError(
            f"{subject.model} is a plain model: attnres convert gives it depth weights"
        )
    text = text_of(subject, model, tokenizer, file, n_tokens)
    reading = read_text(model, text.sequences)
    return Explored(
        name=subject.name,
        residual=subject.residual or str(model.config.residual["method"]),
        text=text,
        reading=reading,
        effects=_measure(model, text) if measures else subject.effects(),
    )


def _measure(model: Any, text: Text) -> dict[str, Any]:
    """On the whole sequences of the text; on its only one where it is short."""
    length = len(text.sequences[0])
    whole = [tokens_T for tokens_T in text.sequences if len(tokens_T) == length]
    return asdict(ablate(model, torch.stack(whole)))


def _check_size(explored: Sequence[Explored]) -> None:
    n_bytes = sum(_n_bytes(each.reading, len(each.text.pieces)) for each in explored)
    if n_bytes > LARGEST_PAGE_BYTES:
        raise ValueError(
            f"the page would have {n_bytes / 1e6:,.0f} MB of weights, more than "
            f"{LARGEST_PAGE_BYTES / 1e6:,.0f}: give fewer folders or fewer --tokens"
        )


def _n_bytes(reading: Reading, n_tokens: int) -> int:
    return page_bytes(sum(map(len, reading.sources)), n_tokens) if reading.weights else 0


def _words(explored: Explored) -> str:
    reading, n_tokens = explored.reading, len(explored.text.pieces)
    shown = f"{len(reading.readers)} readers" if reading.weights else "its mixing matrix alone"
    if not reading.weights and reading.mixing is None:
        shown = f"nothing: {reading.no_mixing}"
    return f"{explored.name}: {n_tokens:,} tokens, {shown}"
