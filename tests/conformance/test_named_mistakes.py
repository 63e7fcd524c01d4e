"""The kit is tried on itself: every wrong implementation is caught, and named as itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnres.conformance import MISTAKES, check
from attnres.conformance.answers import Way, ask_once
from attnres.conformance.budget import cases_of
from attnres.conformance.diagnosis import diagnose
from attnres.conformance.habits import answers_change, changes_inputs
from attnres.conformance.mistakes import PRECISION, combine, mistakes_of
from attnres.conformance.op_steps import Op
from attnres.conformance.schedule_steps import Schedule
from attnres.conformance.wrong_op_steps import float32_arithmetic

APART = 0.05  # by which a mistake is told from the next nearest, of a remainder of 0 to 1


def diagnosed(kind, function: Callable[..., Any], dtype=torch.float32):
    way = Way(dtype)
    answers = {x.name: ask_once(kind, function, x, way).values for x in cases_of(kind)}
    return diagnose(kind, dtype, answers)


def wrong(kind, *names: str) -> Callable[..., Any]:
    function = combine(kind, *(MISTAKES[name] for name in names))
    assert function is not None
    return function


@pytest.mark.parametrize("kind", ["op", "full", "block", "start"])
def test_each_is_caught_and_named_and_no_other(kind):
    names = [x.name for x in mistakes_of(kind)]
    for name in names:
        dtype = torch.bfloat16 if name in PRECISION else torch.float32
        found = diagnosed(kind, wrong(kind, name), dtype)
        assert found is not None, f"{name} is not caught"
        assert found.mistakes == (name,)
        assert found.remainder == 0, name
        assert found.equals == (), name
        assert found.runner_up[1] > APART, f"{name} is like {found.runner_up}"


def test_the_right_steps_make_no_mistake():
    assert diagnosed("op", wrong("op")) is None
    assert diagnosed("block", wrong("block"), torch.bfloat16) is None


def test_full_attnres_shows_none_of_the_mistakes_of_blocks():
    for mistake in MISTAKES.values():
        if mistake.part == "blocks":
            schedule = wrong("block", mistake.name)
            assert isinstance(schedule, Schedule)
            assert diagnosed("full", schedule.full) is None, mistake.name


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("op", ("l2_norm", "scaled_logits")),  # L2 norm and 1/sqrt(D) as well
        ("op", ("no_key_weight", "normed_values", "scaled_logits")),  # as Inkling-2 mixes
        ("op", ("detached_weights", "no_key_weight")),
        pytest.param(*("block", ("cumulative_states", "no_output_read")), marks=pytest.mark.slow),
        pytest.param(*("block", ("detached_blocks", "query_before")), marks=pytest.mark.slow),
        pytest.param(*("full", ("layer_norm", "output_sum")), marks=pytest.mark.slow),
    ],
)
def test_several_at_once_are_named_together(kind, names):
    found = diagnosed(kind, wrong(kind, *names))
    assert found is not None
    assert set(found.mistakes) == set(names)
    assert found.is_sure


def test_without_gradients_what_only_a_backward_shows_is_not_seen():
    report = check(wrong("op", "detached_weights"), gradients=False)
    assert report.conforms
    assert not report.has_gradients


def test_what_is_no_named_mistake_is_said_to_be_none():
    found = diagnosed("op", lambda query, *rest: Op()(1.01 * query, *rest))
    assert found is not None
    assert not found.is_sure


@pytest.mark.parametrize(
    ("kind", "function", "name"),
    [
        ("op", changes_inputs, "changes_inputs"),
        ("op", answers_change(), "answers_change"),
        ("full", Schedule(attend=changes_inputs).full, "changes_inputs"),
        ("block", Schedule(attend=answers_change()), "answers_change"),
    ],
)
def test_habits_are_caught_whatever_the_numbers(kind, function, name):
    report = check(function, kind, dtypes=[torch.float32])
    assert name in report.habits
    assert not report.conforms


def test_float32_arithmetic_is_named_in_float64_alone():
    op = Op(arithmetic=float32_arithmetic)
    assert check(op, dtypes=[torch.float32, torch.bfloat16]).conforms
    report = check(op, dtypes=[torch.float64, torch.float32])
    assert report.mistakes == ("float32_arithmetic",)
    assert not report.conforms


def test_every_mistake_says_who_sees_it_and_how_to_mend_it():
    assert len(MISTAKES) > 50
    for name, mistake in MISTAKES.items():
        assert mistake.name == name
        for text in (mistake.what, mistake.seen_by, mistake.mend):
            assert text.endswith("."), f"{name}: {text}"
        assert mistake.steps or mistake.part == "habit"
