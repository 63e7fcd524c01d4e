"""The last word of passages that no run on the embedded corpus has trained on.

A passage ends with a word that it has had before, among at least three others of its kind, so that
neither its novelty nor its having been seen gives the word away. What is held out is what a recipe
with the default `validation_fraction` holds out.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache

from attnres.evaluation import own_task
from attnres.evaluation.task import Task

N_QUESTIONS = 1000
N_EXAMPLES = 32  # questions to draw examples from
N_WORDS = 40  # of a passage, about 60 tokens of a small vocabulary
N_CHOICES = 4
VERSION = "1"
CANDIDATE = re.compile(r"[a-z]{4,}")


def tasks() -> list[Task]:
    """The same passages twice: the word is to be written, or chosen among four."""
    return [
        own_task.likelihood("cloze_word", _splits, VERSION),
        own_task.choice("cloze_choice", _splits, VERSION),
    ]


def passages(documents: Sequence[str], n_most: int = N_QUESTIONS) -> list[own_task.Row]:
    """Questions from these documents, evenly spread: text, answer, choices and gold."""
    found = [row for text in documents for row in _of_document(text)]
    n_kept = min(n_most, len(found))
    rows = [found[i * len(found) // n_kept] for i in range(n_kept)]
    return [_with_choices(row, number) for number, row in enumerate(rows)]


@cache
def _splits() -> own_task.Splits:
    from attnres.train.corpus import embedded_documents
    from attnres.train.data import DataConfig, split_documents

    texts = [document.text for document in embedded_documents()]
    train, held_out = split_documents(texts, DataConfig().validation_fraction)
    return {"test": passages(held_out), "train": passages(train, N_EXAMPLES)}


def _of_document(text: str) -> Iterator[own_task.Row]:
    """One passage after the other; where none ends at its place, the next word is tried."""
    words = text.split(" ")
    end = N_WORDS
    while end < len(words):
        before, last = words[end - N_WORDS : end], words[end]
        answer = CANDIDATE.match(last)
        others = sorted({w for w in before if CANDIDATE.fullmatch(w)} - {answer and answer[0]})
        if answer and answer[0] in before and len(others) >= N_CHOICES - 1:
            yield {"text": " ".join(before), "answer": answer[0], "others": others}
            end += N_WORDS
        end += 1


def _with_choices(row: own_task.Row, number: int) -> own_task.Row:
    drawn = random.Random(number)
    choices = [row["answer"], *drawn.sample(row["others"], N_CHOICES - 1)]
    drawn.shuffle(choices)
    gold = choices.index(row["answer"])
    return {"text": row["text"], "answer": row["answer"], "choices": choices, "gold": gold}
