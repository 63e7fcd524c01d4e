"""The last word of passages that no run on the embedded corpus has trained on.

A passage ends with a word that it has had before, and offers three others that it has had, so that
neither novelty nor having been seen gives the word away. Words that are common in the training part
are neither asked nor offered: among them the commonest is mostly right, whatever the passage says.
What is held out is what a recipe with the default `validation_fraction` holds out.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache

from attnres.evaluation import own_task
from attnres.evaluation.task import Task

N_QUESTIONS = 1000  # at most
N_COMMON = 200  # words that are not asked
N_EXAMPLES = 32  # questions to draw examples from
N_WORDS = 40  # of a passage, about 60 tokens of a small vocabulary
N_CHOICES = 4
VERSION = "2"
CANDIDATE = re.compile(r"[a-z]{4,}")
WORD = re.compile(r"[a-z]+")


def tasks() -> list[Task]:
    """The same passages twice: the word is to be written, or chosen among four."""
    return [
        own_task.likelihood("cloze_word", _splits, VERSION),
        own_task.choice("cloze_choice", _splits, VERSION),
    ]


def passages(
    documents: Sequence[str], common: AbstractSet[str], n_most: int = N_QUESTIONS
) -> list[own_task.Row]:
    """Questions from these documents, evenly spread: text, answer, choices and gold.

    Args:
        documents: whose passages they are.
        common: words that are neither asked nor offered.
        n_most: questions; where there are more, each one of so many is left out.
    """
    found = [row for text in documents for row in _of_document(text, common)]
    n_kept = min(n_most, len(found))
    rows = [found[i * len(found) // n_kept] for i in range(n_kept)]
    return [_with_choices(row, number) for number, row in enumerate(rows)]


@cache
def _splits() -> own_task.Splits:
    from attnres.train.corpus import embedded_documents
    from attnres.train.data import DataConfig, split_documents

    texts = [document.text for document in embedded_documents()]
    train, held_out = split_documents(texts, DataConfig().validation_fraction)
    common = common_words(train)
    return {"test": passages(held_out, common), "train": passages(train, common, N_EXAMPLES)}


def common_words(documents: Sequence[str]) -> frozenset[str]:
    """The commonest words of these documents."""
    count = Counter(word for text in documents for word in WORD.findall(text.lower()))
    return frozenset(word for word, _ in count.most_common(N_COMMON))


def _of_document(text: str, common: AbstractSet[str]) -> Iterator[own_task.Row]:
    """One passage after the other; where none ends at its place, the next word is tried."""
    words = text.split(" ")
    end = N_WORDS
    while end < len(words):
        before, last = words[end - N_WORDS : end], words[end]
        known = {word for word in before if CANDIDATE.fullmatch(word)} - common
        answer = CANDIDATE.match(last)
        if answer and answer[0] in known and len(known) >= N_CHOICES:
            others = sorted(known - {answer[0]})
            yield {"text": " ".join(before), "answer": answer[0], "others": others}
            end += N_WORDS
        end += 1


def _with_choices(row: own_task.Row, number: int) -> own_task.Row:
    drawn = random.Random(number)
    choices = [row["answer"], *drawn.sample(row["others"], N_CHOICES - 1)]
    drawn.shuffle(choices)
    gold = choices.index(row["answer"])
    return {"text": row["text"], "answer": row["answer"], "choices": choices, "gold": gold}
