"""Who asks for huge pages, when, and what is left alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnres import cli, huge_pages
from attnres.huge_pages import HUGE_PAGES, VARIABLE, ask_for_them


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """Linux gives huge pages to those that ask, and nobody has asked."""
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "SETTING", file)
    monkeypatch.setenv(VARIABLE, "")  # so that what a test sets does not stay
    monkeypatch.delenv(VARIABLE)
    return file


def test_they_are_asked_for_once(setting):
    assert ask_for_them()
    assert os.environ[VARIABLE] == HUGE_PAGES
    assert not ask_for_them()


@pytest.mark.parametrize("text", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_linux_decides(setting, text):
    setting.unlink() if text is None else setting.write_text(text)
    assert not ask_for_them()
    assert VARIABLE not in os.environ


def test_what_the_user_set_stays(setting, monkeypatch):
    monkeypatch.setenv(VARIABLE, "glibc.malloc.check=1")
    assert not ask_for_them()
    assert os.environ[VARIABLE] == "glibc.malloc.check=1"


@pytest.mark.slow
def test_a_program_starts_anew_with_its_arguments(setting):
    code = f"""
import os, sys, pathlib
from attnres import huge_pages
print("started", flush=True)
huge_pages.SETTING = pathlib.Path({str(setting)!r})
huge_pages.restart_with_them()
print(os.environ["{VARIABLE}"], *sys.argv[1:])
"""
    command = [sys.executable, "-c", code, "one", "two three"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"started\nstarted\n{HUGE_PAGES} one two three\n"


@pytest.mark.parametrize(
    ("command", "is_anew"), [("train", True), ("demo", True), ("layout", False), ("cost", False)]
)
def test_commands_that_train_start_anew(command, is_anew, monkeypatch):
    calls = []
    monkeypatch.setattr(cli, "restart_with_them", lambda: calls.append("restart"))
    monkeypatch.setattr(cli, "main", calls.append)
    monkeypatch.setattr(sys, "argv", ["attnres", command, "--help"])
    cli.program()
    assert calls == ["restart"] * is_anew + [[command, "--help"]]


def test_workers_of_a_study_have_them(setting, tmp_path):
    from attnres.experiment.runner import Place, _workers

    with _workers(Place(tmp_path, False, tmp_path), 1) as (worker,):
        environment = Path(f"/proc/{worker.process.pid}/environ")
        while b"spawn_main" not in environment.with_name("cmdline").read_bytes():
            time.sleep(0.01)  # the child is still a copy of this process
        assert f"{VARIABLE}={HUGE_PAGES}".encode() in environment.read_bytes()
