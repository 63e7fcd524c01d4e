"""Implementations that are handed in: what conforms, and what is said of what does not."""

import re
from pathlib import Path

import pytest
import strangers
import torch
from implementations import IMPLEMENTATIONS

from attnres.conformance import MISTAKES, SIGNATURES, assert_conforms, check, ours
from attnres.conformance.cases import KindName
from attnres.conformance.words import as_json, finding
from attnres.ops import depth_attention


def said(function, kind: KindName = "op", **settings) -> str:
    report = check(function, kind, **settings)
    assert not report.conforms
    return "\n".join(finding(report))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_every_implementation_of_the_library_conforms(impl):
    def op(query, sources, key_weight, *, eps):
        return depth_attention(query, sources, key_weight, eps=eps, impl=impl)

    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    assert_conforms(op, dtypes=dtypes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("full", "full"),
        ("block", "block"),
        ("two_phase", "block"),
        ("model", "model"),
        ("start", "start"),
    ],
)
def test_the_methods_of_the_library_conform(name, kind):
    assert_conforms(getattr(ours, name), kind)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (strangers.plain, {}),
        (strangers.by_name, {}),
        (strangers.of_arrays, {"arrays": True}),
        (strangers.without_gradient, {"gradients": False}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_right_code_of_strangers_conforms(function, settings):
    report = check(function, **settings)
    assert report.conforms, finding(report)
    assert report.has_gradients == (not settings)
    assert ("Gradients were not compared" in "\n".join(finding(report))) == bool(settings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("without_gradient", "returned what has no gradient"),
        ("in_float32", "returned float32 for inputs of bfloat16"),
        ("without_first_axis", r"returned shape \[3, 16\], expected \[2, 3, 16\]"),
        ("as_a_list", "returned a list where a tensor was expected"),
        ("of_integers", "returned int64, expected a floating point dtype"),
        ("raising", "In many_sources .* and 1 more: NotImplementedError: more than 32 sources."),
    ],
)
def test_what_is_no_answer_is_said_in_a_line(name, words):
    text = said(getattr(strangers, name))
    assert "Traceback" not in text
    assert re.search(words, text), text


def test_a_traceback_is_there_for_who_asks():
    report = check(strangers.raising)
    assert "in raising" in "\n".join(finding(report, with_trace=True))


def test_what_is_not_a_number_is_wrong_everywhere_it_stands():
    report = check(strangers.not_a_number)
    assert {row.case for row in report.rows if row.passes} == {"no_tokens"}
    assert as_json(report)["rows"][0]["errors"]["mix"]["error"] == "not finite"


def test_rounding_is_told_from_a_mistake():
    text = said(strangers.in_the_dtype_of_the_sources)
    assert "It is right in a wider dtype, so that this is rounding" in text
    assert check(strangers.in_the_dtype_of_the_sources, dtypes=[torch.float32]).conforms


def test_a_model_that_runs_sublayers_otherwise_is_refused():
    assert r"ran as [1]" in said(strangers.skipping, "model")
    assert "returned 1 reads, expected" in said(strangers.few_reads, "full")


@pytest.mark.parametrize("returned", [3, (torch.zeros(2, 3),), (torch.zeros(2), torch.ones(2))])
def test_a_start_of_another_form_is_refused(returned):
    assert "In start (float32)" in said(lambda dim, n_sublayers: returned, "start")


def test_a_start_may_have_a_first_reader():
    assert_conforms(lambda dim, n: (torch.zeros(n + 1, dim), torch.ones(n + 1, dim)), "start")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no kind 'layer'; there are: op, full"):
        check(strangers.plain, "layer")  # type: ignore[arg-type]


def test_a_test_of_a_stranger_says_what_is_wrong():
    with pytest.raises(AssertionError, match="It behaves like ignores_query"):
        assert_conforms(lambda query, sources, *rest: strangers.plain(0 * query, sources, *rest))


def test_the_example_of_the_page_runs_and_its_mistakes_have_these_names():
    text = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {})
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| .* \| .* \|$", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named >= set(SIGNATURES)
    assert named - set(SIGNATURES) <= set(MISTAKES)
    assert len(MISTAKES) > 55
