"""Every block of the README and of docs/ runs, or says why not and is parsed."""

import ast
import re
import shlex
import signal
import subprocess
import sys
import warnings

import pytest
import torch
import yaml
from pages import LANGUAGES, MARKS, PAGES, Block, blocks, commands, matches, prose, read
from places import lay_out, names_of
from running import Reader, call

from attnres.cli import COMMANDS
from attnres.models.families import FAMILIES
from attnres.residual import RESIDUALS

RUN = ("python", "sh", "console")
WITHOUT_HELP_OF_OURS = ("serve",)  # its options are those of transformers


def ways_of(page: str) -> list:
    return [pytest.mark.slow] if any(each.mark == "slow" for each in blocks(page)) else []


def with_code() -> list:
    """Pages that have something to run."""
    found = [
        page
        for page in PAGES
        if any(each.language in RUN and not each.why_not_run for each in blocks(page))
    ]
    return [pytest.param(page, marks=ways_of(page)) for page in found]


@pytest.fixture
def reading(tmp_path, monkeypatch):
    """An empty folder to work in; what a page changes in this process is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("COLUMNS", "120")
    torch.manual_seed(0)
    modules, registries = set(sys.modules), [dict(RESIDUALS), dict(FAMILIES)]
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)
    for registry, before in zip((RESIDUALS, FAMILIES), registries, strict=True):
        registry.clear()
        registry.update(before)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("page", with_code())
def test_the_blocks_of_a_page_run_in_its_order(page, reading):
    lay_out(read(page), reading)
    reader, printed = Reader(reading, names_of(page, reading)), ""
    for block in blocks(page):
        if block.mark == "output":
            assert matches(block.code.splitlines(), printed), f"{block.place}: got\n{printed}"
        elif block.language in RUN and not block.why_not_run:
            printed = reader.run(block)
        if page == "README.md":  # whose examples are copied one by one
            reader.forget()


def not_run() -> list[Block]:
    return [each for page in PAGES for each in blocks(page) if each.why_not_run]


@pytest.mark.parametrize("block", not_run(), ids=lambda block: block.place)
def test_a_block_that_is_not_run_is_right_as_far_as_can_be_seen(block, reading):
    if block.language == "python":
        ast.parse(block.code)
    elif block.language == "yaml":
        assert yaml.safe_load(block.code)
    else:
        script = "\n".join(each.words for each in commands(block))
        done = subprocess.run(
            ["bash", "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        for each in commands(block):
            assert_options_exist(each.words, block.place)


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_a_sentence_exist_with_their_options(page, reading):
    for words in re.findall(r"`((?:torchrun [^`]*-m )?attnres [a-z][^`]*)`", prose(page)):
        assert_options_exist(words.replace("\n", " "), page)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_has_a_language_and_marks_that_are_known(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, block.place
        assert not block.mark or MARKS.fullmatch(block.mark), (block.place, block.mark)
    assert read(page).count("\n```") + read(page).startswith("```") == 2 * len(blocks(page))
    indented = re.findall(r"^ {4}(?:\$ )?(?:attnres|python|pip|make) .*", read(page), re.MULTILINE)
    assert not indented, f"{page}: a fence says what it is: {indented}"


HELP: dict[str, str] = {}


def assert_options_exist(line: str, place: str) -> None:
    """Each `attnres` of a line of shell is a command, and has the options that it is given."""
    for words in re.findall(r"(?:^|\s|\()attnres ([a-z][^|;&)]*)", line):
        command, *arguments = shlex.split(words, comments=True)
        assert command in COMMANDS, f"{place}: attnres {command}"
        if command not in WITHOUT_HELP_OF_OURS:
            known = help_of(command)
            options = [word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)]
            unknown = [each for each in options if not re.search(rf"{each}\b", known)]
            assert not unknown, f"{place}: attnres {command} has no {unknown}"


def help_of(command: str) -> str:
    if command not in HELP:
        recipe = ["demo"] if command == "train" else []
        HELP[command] = call([command, *recipe, "--help"], "help")
    return HELP[command]
