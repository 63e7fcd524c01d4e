"""Tokens as text that can be shown one by one, whichever tokenizer made them."""

from collections.abc import Sequence
from typing import Any

BROKEN = "\ufffd"  # what a tokenizer makes of bytes that are no whole character
FOLLOWS = "\u22ef"  # in the place of a token that ends a character begun before
LONGEST = 4  # bytes of a character in UTF-8, and so the most tokens of one


def text_pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """One piece a token; a character of several tokens stands at the first of them."""
    pieces = [_piece(tokenizer, token) for token in tokens]
    place = 0
    while place < len(pieces):
        if BROKEN not in pieces[place]:
            place += 1
            continue
        n, whole = _character(tokenizer, tokens[place : place + LONGEST])
        pieces[place : place + n] = [whole] + [FOLLOWS] * (n - 1)
        place += n
    return pieces


def _character(tokenizer: Any, tokens: Sequence[int]) -> tuple[int, str]:
    """The fewest of these tokens that are whole characters, and their text."""
    for n in range(2, len(tokens) + 1):
        text = tokenizer.decode(list(tokens[:n]))
        if BROKEN not in text:
            return n, text
    return 1, BROKEN


def _piece(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token])
    begins_word = str(tokenizer.convert_ids_to_tokens(token)).startswith("\u2581")
    return f" {text}" if begins_word and not text.startswith(" ") else text
