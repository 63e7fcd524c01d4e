"""A fuzz test draws the same examples whichever tests ran before it."""

import importlib

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=200)
@given(data=st.data())
def _draws(found, data):
    found.append(data.draw(st.integers()))


def drawn():
    found = []
    _draws(found)
    return found


def test_constants_of_other_modules_are_not_drawn(tmp_path, monkeypatch):
    before = drawn()
    numbers = [123_456_789 + 1000 * i for i in range(300)]
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {numbers}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    after = drawn()
    assert not set(numbers) & set(after)
    assert after == before
