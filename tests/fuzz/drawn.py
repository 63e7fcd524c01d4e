"""What fuzz tests draw, and what every refusal must be."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

MOST_BYTES = 1 << 31  # that a call may take beyond what the process has
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths_in(nested: Any, prefix: tuple = ()) -> list[tuple]:
    """Where every value of nested objects and lists is."""
    pairs = nested.items() if isinstance(nested, dict) else enumerate(nested)
    found = []
    for key, value in pairs:
        found.append((*prefix, key))
        if isinstance(value, dict | list):
            found += paths_in(value, (*prefix, key))
    return found


def changed(nested: Any, path: tuple, value: Any) -> Any:
    """A copy with another value at a path; without it where the value is `LEFT_OUT`."""
    copy = dict(nested) if isinstance(nested, dict) else list(nested)
    first, rest = path[0], path[1:]
    if rest:
        copy[first] = changed(nested[first], rest, value)
    elif value is LEFT_OUT:
        del copy[first]
    else:
        copy[first] = value
    return copy


LEFT_OUT = object()


def assert_one_line(error: BaseException, *words: object) -> None:
    text = str(error)
    assert text, f"no words: {error!r}"
    assert len(text.splitlines()) == 1, text
    assert len(text) < 2000, text
    for word in words:
        assert str(word) in text, (word, text)


def assert_names_one(error: BaseException, values: list[Any]) -> None:
    """One of the values is in the error's one line, as Python writes it."""
    assert_one_line(error)
    words = [repr(value).lower() for value in values]  # none is said of a unit that is None
    assert any(word in str(error).lower() for word in words), (words, str(error))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@contextmanager
def little_memory() -> Iterator[None]:
    """What asks for much more memory than the process has gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
