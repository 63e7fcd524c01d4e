"""The command `attnres conform`: what it prints, its exit status, and code that hangs or dies."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from call_command import call_command
from safetensors.torch import save_file

from attnres.conformance import MISTAKES, SIGNATURES
from attnres.conformance.isolated import load

STRANGERS = Path(__file__).with_name("strangers.py")


@pytest.fixture
def conform(capsys):
    return lambda *arguments: call_command("conform", arguments, capsys)


@pytest.mark.slow
def test_the_reference_conforms_in_a_process_of_its_own(conform, tmp_path):
    found = tmp_path / "found.json"
    target = "attnres.ops.reference:depth_attention"
    status, out, err = conform(target, "--json", found)
    assert (status, err) == (0, "")
    assert "Conforms as op: 16 cases in float32 and bfloat16, outputs and every gradient" in out
    written = json.loads(found.read_text())
    assert written["target"] == target
    (report,) = written["reports"]
    assert report["conforms"]
    assert {row["dtype"] for row in report["rows"]} == {"float32", "bfloat16"}


@pytest.mark.slow
def test_code_that_hangs_and_dies_loses_those_answers_alone(conform):
    arguments = ("--dtypes", "float32", "--no-gradients", "--timeout-s", 3)
    status, out, _ = conform(f"{STRANGERS}:losing", *arguments)
    assert status == 1
    assert "In no_tokens (float32): no answer within 3 s." in out
    assert "In counted (float32): its process ended with status 7." in out
    assert out.count("no answer ") == 2 + 1  # two cells of the table and the words above
    assert len(re.findall(r" ok\b", out)) == 14


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module:f", "no_such_module:f: ModuleNotFoundError: No module named"),
        (f"{STRANGERS}:nothing", "has no 'nothing'"),
    ],
)
def test_what_cannot_be_asked_ends_with_one_line(conform, target, words):
    status, out, err = conform(target)
    assert (status, out) == (2, "")
    assert err.startswith("attnres: error: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("module", "give module:function or file.py:function, got 'module'"),
        (":f", "give module:function"),
        ("absent.py:f", "there is no file absent.py"),
        (f"{STRANGERS}:NOT_CALLABLE", "is a int, not a function"),
        ("math:nothing", "math has no 'nothing'"),
    ],
)
def test_a_target_that_is_no_function_is_refused(monkeypatch, target, words):
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(ValueError, match=re.escape(words)):
        load(target)


def test_a_target_is_found_in_a_class_and_in_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("of_mine.py").write_text("class Op:\n    @staticmethod\n    def f(): return 5\n")
    assert load("of_mine:Op.f")() == 5
    assert load("of_mine.py:Op.f")() == 5


def test_vectors_go_out_and_answers_come_in(conform, tmp_path):
    status, out, _ = conform("--export", tmp_path)
    assert status == 0
    assert "conformance.json" in out
    status, out, _ = conform("--answers", tmp_path / "full.safetensors")
    assert status == 0
    assert "Conforms as full" in out
    wrong = {"op/random/answer/mix": torch.ones(2, 3, 16)}
    save_file(wrong, tmp_path / "wrong.safetensors")
    status, out, _ = conform("--answers", tmp_path / "wrong.safetensors")
    assert status == 1
    assert "Does not conform as op." in out
    assert "and 12 more: not answered." in out


def test_kinds_and_mistakes_are_listed(conform):
    status, out, _ = conform("--list")
    assert status == 0
    for name in (*SIGNATURES, *MISTAKES):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of: module:function, --list"),
        (("a:b", "--list"), "give one of: module:function, --list"),
        (("a:b", "--timeout-s", 0), "timeout_s must be positive, got 0.0"),
        (("a:b", "--arrays", "--dtypes", "bfloat16"), "numpy has no bfloat16"),
        (("a:b", "--kind", "layer"), "layer"),
        (("--answers", "absent.safetensors"), "absent.safetensors"),
    ],
)
def test_bad_arguments_end_with_one_line(conform, arguments, words):
    status, out, err = conform(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("attnres: error: ")
    assert words in err
    assert err.count("\n") == 1
