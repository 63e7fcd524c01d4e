"""What a person sees of a run."""

import io
import re

import pytest
from rich.console import Console

from attnres.train.progress import Progress
from attnres.train.recipe import Recipe

RECIPE = Recipe(name="standard", n_steps=250)


def show(width, is_terminal, name="standard"):
    file, seen = io.StringIO(), 0
    console = Console(file=file, force_terminal=is_terminal, width=width)
    with Progress(Recipe(name=name, n_steps=250), console) as progress:
        for step in range(10, 251, 10):
            progress(step, {"loss": 5.0 - step / 100, "grad_norm": 1.0, "tokens_per_s": 12345.6})
            if step % 50 == 0:
                progress(step, {"validation_loss": 3.25})
            if step == 100:
                progress._bar.refresh()
                seen = len(file.getvalue())
    return file.getvalue()[:seen], file.getvalue()


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_steps_loss_pace_and_the_time_left(width):
    middle, _ = show(width, is_terminal=True)
    last = plain(middle).splitlines()[-1].rpartition("\r")[2]
    assert "standard" in last
    assert "100/250" in last
    assert "4.000" in last
    assert "12,346 tokens/s" in last
    assert re.search(r"left +\d:\d\d:\d\d", last), last
    assert len(last) <= width


def test_a_file_gets_one_plain_line_at_each_validation():
    _, text = show(80, is_terminal=False)
    assert text == plain(text)
    assert len(text.splitlines()) == 5
    first = text.splitlines()[0]
    assert first == ("standard: step 50 of 250, loss 4.500, held out 3.250, 12,346 tokens/s")


def test_what_was_not_logged_yet_is_not_shown():
    """Where validation is more frequent than the log of steps."""
    file = io.StringIO()
    with Progress(RECIPE, Console(file=file)) as progress:
        progress(2, {"validation_loss": 3.25})
    assert file.getvalue() == "standard: step 2 of 250, held out 3.250\n"


def test_a_file_gets_long_names_as_they_are_and_in_one_line():
    name = "attn_res[n_blocks=6]" * 4
    _, text = show(80, is_terminal=False, name=name)
    assert len(text.splitlines()) == 5
    assert text.startswith(f"{name}: step 50")
