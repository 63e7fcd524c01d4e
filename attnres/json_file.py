"""JSON from a file: an object, or one line that names the file and what is wrong with it."""

import json
from pathlib import Path
from typing import Any


def parse_object(text: str) -> dict[str, Any]:
    """ValueError for what is no JSON, however it is broken, or no object."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    return value


def read_object(file: Path) -> dict[str, Any]:
    """ValueError with the file's name where it holds none."""
    try:
        return parse_object(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
