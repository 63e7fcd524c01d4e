"""The questions of the conformance kit and their right answers."""

import pytest
import torch

from attnres.conformance import ours
from attnres.conformance.answers import Way, ask
from attnres.conformance.budget import as_written, budgets, cases_of, distance, exact
from attnres.conformance.cases import Draws
from attnres.ops import reference

KINDS = ("op", "full", "block")


def test_the_draws_are_those_of_their_generator():
    """Worked out with integers alone, so that no release of torch changes them."""
    state, found = 7, []
    for _ in range(3):
        total = 0
        for _ in range(4):
            state = (6364136223846793005 * state + 1442695040888963407) % 2**64
            total += state // 2**59
        found.append((total - 62) / 32)
    assert Draws(7)(3).tolist() == found


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_is_the_same_number_in_every_dtype(kind):
    for case in cases_of(kind):
        for name, x in {**case.inputs, "upstream": case.upstream}.items():
            for dtype in (torch.bfloat16, torch.float16):
                assert torch.equal(x.to(dtype).double(), x), f"{case.name} {name} {dtype}"


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_are_those_of_the_library(kind):
    """The right steps of the kit and the library are written apart."""
    function = reference.depth_attention if kind == "op" else getattr(ours, kind)
    for case in cases_of(kind):
        answer = ask(kind, function, case, Way(torch.float64))
        assert not answer.problem, answer.trace
        right = exact(kind, case.name)
        assert answer.values.keys() == right.keys()
        for name, value in right.items():
            if case.check == "finite" and name.startswith("gradient"):
                continue
            size = float(value.abs().max()) if value.numel() else 0
            torch.testing.assert_close(answer.values[name], value, rtol=1e-10, atol=1e-12 * size)


def test_golden_tables_are_the_right_answers():
    n_golden = 0
    for kind in KINDS:
        for case in (case for case in cases_of(kind) if case.golden):
            (answer,) = [x for name, x in exact(kind, case.name).items() if "gradient" not in name]
            golden = torch.tensor(case.golden, dtype=torch.float64).view(-1, 1, 1, 1)
            expected = golden.expand(len(golden), *answer.shape[-3:]).reshape(answer.shape)
            torch.testing.assert_close(answer, expected, rtol=1e-14, atol=0)
            n_golden += 1
    assert n_golden == 4


def test_an_answer_that_must_be_exact_is_allowed_nothing():
    assert set(budgets("op", "one_source", torch.float32).values()) == {0.0}
    assert exact("op", "one_source")["gradient of query"].abs().max() == 0
    wide, narrow = (budgets("op", "random", x)["mix"] for x in (torch.float32, torch.bfloat16))
    assert 0 < wide < 1e-5 < narrow < 0.2


def test_distance_sees_what_is_not_finite():
    a = torch.tensor([1.0, torch.nan, torch.inf])
    assert distance(a, a) == 0
    assert distance(a, torch.tensor([1.0, 0.0, torch.inf])) == torch.inf
    assert distance(a, torch.tensor([1.0, torch.nan, -torch.inf])) == torch.inf
    assert distance(a, torch.tensor([1.5, torch.nan, torch.inf])) == 0.5
    assert distance(torch.zeros(0), torch.zeros(0)) == 0


def test_a_model_answers_the_questions_to_blocks():
    assert as_written("model") == "block"
    assert cases_of("model") is cases_of("block")
    with pytest.raises(ValueError, match="no kind 'layer'"):
        cases_of("layer")  # type: ignore[arg-type]
