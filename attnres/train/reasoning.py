"""Questions with their answers from the generators of reasoning-gym, to train on and to be asked.

A question depends on its generator, that generator's settings below and its number alone. Numbers
of what is asked and of what is trained on are far apart; a training question that is word for word
one of those asked is left out.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

PREFIX = "reasoning:"  # of a data path that means this source
VERSION = 1  # one more wherever the same numbers give another question or form of text
N_ASKED = 500  # questions a generator that no training has
FIRST_TRAINED = 10_000_000  # number of the first that is trained on
N_DOCUMENTS = 40_000  # of all generators together, where the path says nothing
GENERATORS: Mapping[str, Mapping[str, Any]] = {
    "chain_sum": {"max_terms": 4, "max_digits": 2},
    "basic_arithmetic": {"max_terms": 4, "max_digits": 1},
    "leg_counting": {"min_animals": 2, "max_animals": 4},
    "letter_counting": {"max_words": 8},
    "word_sequence_reversal": {"max_words": 6},
    "syllogism": {},
    "family_relationships": {"max_family_size": 6},
    "color_cube_rotation": {},
}
"""Those that take several steps, have an answer of one line, and are made in milliseconds."""


class Question(NamedTuple):
    text: str  # ends where the answer begins, but for a space
    answer: str
    number: int


def is_reasoning(path: str) -> bool:
    return path.startswith(PREFIX)


def reasoning_documents(path: str) -> list[str]:
    """The documents of a path such as "reasoning:", "reasoning:chain_sum,syllogism,n=20000".

    One question and its answer each, of all generators alike, shuffled in one fixed way.

    Raises:
        ValueError: no such generator, no such setting, or reasoning-gym is not installed.
    """
    names, n_documents = _parse(path)
    documents: list[str] = []
    for name in names:
        asked = {question.text for question in questions(name)}
        n_own = -(-n_documents // len(names))
        trained = questions(name, FIRST_TRAINED, n_own)
        documents += [document(q) for q in trained if q.text not in asked]
    random.Random(0).shuffle(documents)  # so that a packed sequence mixes them
    return documents[:n_documents]


def document(question: Question) -> str:
    return f"{question.text} {question.answer}"


def questions(name: str, first: int = 0, n: int = N_ASKED) -> list[Question]:
    """`n` questions of a generator, from number `first` on; without numbers, those asked."""
    made = _generator(name, first, n)
    return [
        Question(f"{entry['question']}\nAnswer:", str(entry["answer"]), first + place)
        for place, entry in enumerate(made[i] for i in range(n))
    ]


def score(name: str, number: int, answer: str) -> float:
    """What the generator's own scorer gives for an answer, from 0 to 1 (right)."""
    made = _generator(name, 0, number + 1)
    return float(made.score_answer(answer=answer, entry=made[number]))


@cache
def _generator(name: str, first: int, n: int) -> Any:
    """Its item i is made with the seed first + i."""
    return package().create_dataset(name, seed=first, size=n, **GENERATORS[name])


def package() -> Any:
    """reasoning_gym; ValueError where it is not installed."""
    try:
        import reasoning_gym  # pyright: ignore  an optional package
    except ModuleNotFoundError as error:
        raise ValueError(
            "reasoning-gym is not installed: pip install 'attention-residuals[eval]'"
        ) from error
    return reasoning_gym


def _parse(path: str) -> tuple[Sequence[str], int]:
    words = [word for word in path.removeprefix(PREFIX).split(",") if word]
    names = [word for word in words if "=" not in word]
    n_documents = N_DOCUMENTS
    for word in words:
        key, is_setting, value = word.partition("=")
        if is_setting and (key != "n" or not value.isdecimal() or int(value) < 1):
            raise ValueError(f"{path!r}: {word!r} is no setting; there is n=DOCUMENTS")
        n_documents = int(value) if is_setting else n_documents
    for name in names:
        if name not in GENERATORS:
            raise ValueError(f"{path!r}: no generator {name!r}; there are: {', '.join(GENERATORS)}")
    return names or list(GENERATORS), n_documents
