"""Torch's own runners over a plan give the loss and every gradient of one process."""

from functools import cache

import pytest
import torch
from error_budget import assert_as_good_as
from pipelines import (
    N_STEPS,
    SEQ_LEN,
    Case,
    Run,
    config,
    run_cases,
)
from processes import run_processes

from attnres.distributed import plan_for

pytestmark = [pytest.mark.dist, pytest.mark.slow]
KEEPS = ("nothing", "received", "all")
EIGHT = (1, 2, 4, 5, 6, 8, 9)  # chunks of one and two sublayers
TWO_RANKS = (
    *(Case(keep=keep) for keep in KEEPS),
    Case("looped", checkpointed=True),
    Case("looped", cuts=EIGHT, n_virtual=4, keep="received", residual="attn_res"),
    Case("interleaved", cuts=(1, 2, 9), checkpointed=True, tied=False),
    *(Case("1f1b", cuts=(5,), n_virtual=1, keep=keep) for keep in KEEPS),
    Case(residual="two_phase:sublayers_per_block=4"),
    Case(residual="two_phase", checkpointed=True),
    Case(residual="centered:n_blocks=3"),
    Case(residual="standard"),
    Case(residual="mhc"),
    Case(residual="window:n_last=2,remainder=true"),
    Case("1f1b", cuts=(5,), n_virtual=1, dtype=torch.float32),
    Case(dtype=torch.float32),
    Case(dtype=torch.float32, autocast=torch.bfloat16),
)
FOUR_RANKS = (
    Case("gpipe", n_virtual=1),
    Case("1f1b", n_virtual=1),
    *(Case(cuts=EIGHT, keep=keep) for keep in KEEPS),
    Case("looped", cuts=EIGHT, residual="two_phase:n_blocks=5"),
)
ON_A_MESH = (  # two stages of two ranks each
    Case("gpipe", cuts=(5,), n_virtual=1, n_data=2),
    Case("1f1b", cuts=(5,), n_virtual=1, n_data=2, n_microbatches=2),
    Case("1f1b", cuts=(4,), n_virtual=1, n_data=2, dtype=torch.float32),
    Case(n_data=2, checkpointed=True),
    Case(n_data=2, n_microbatches=2, keep="received", tied=False),
    Case("looped", n_data=2, residual="two_phase:sublayers_per_block=4"),
    Case(n_data=2, residual="mhc"),
    Case(n_data=2, dtype=torch.float32, autocast=torch.bfloat16),
)
CASES = (*TWO_RANKS, *FOUR_RANKS, *ON_A_MESH)
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def runs_of(n_ranks: int) -> dict[Case, list[Run]] | Exception:
    """What each rank found, by case; one group of processes for all cases of its size, once."""
    cases = [case for case in CASES if case.n_ranks == n_ranks]
    try:
        by_rank = run_processes(run_cases, n_ranks, cases, timeout_s=600)
    except Exception as error:
        return error
    return {case: list(runs) for case, runs in zip(cases, zip(*by_rank, strict=True), strict=True)}


def runs(case: Case) -> list[Run]:
    found = runs_of(case.n_ranks)
    if isinstance(found, Exception):
        raise found
    return found[case]


def is_exact(case: Case) -> bool:
    return case.dtype == torch.float64


@every_case
def test_every_gradient_is_that_of_one_process(case):
    for run in runs(case):
        actual, expected = run.steps[0].gradients, run.expected[0].gradients
        assert actual.keys() <= expected.keys()
        for name, gradient in actual.items():
            tolerance = (1e-12 if is_exact(case) else 1e-5) * expected[name].abs().max()
            assert (gradient - expected[name]).abs().max() <= tolerance, name
    held = {name for run in runs(case) for name in run.steps[0].gradients}
    assert held == runs(case)[0].expected[0].gradients.keys()


@every_case
def test_losses_and_norms_of_several_steps_are_those_of_one_process(case):
    tolerance = 1e-6 if is_exact(case) else 1e-4  # norms and loss of transformers are in float32
    if case.autocast:
        tolerance = 1e-2  # a last bit more or less of bfloat16, from the second step on
    for run in runs(case):
        assert run.steps[0].loss == pytest.approx(run.expected[0].loss, rel=1e-7)
        for step, expected in zip(run.steps, run.expected, strict=True):
            assert step.loss == pytest.approx(expected.loss, rel=tolerance)
            assert step.norm == pytest.approx(expected.norm, rel=10 * tolerance)
        assert run.losses[0] == pytest.approx(run.losses[1], rel=10 * tolerance)
        assert run.steps[0].loss != pytest.approx(run.steps[-1].loss, rel=1e-4)


@every_case
def test_nothing_is_kept_after_a_step(case):
    for run in runs(case):
        assert run.n_kept == [0] * (N_STEPS + 1)


@every_case
def test_bytes_on_the_wire_are_the_plan_s(case):
    made = config(case)
    plan = plan_for(made, case.n_stages, case.n_virtual, case.cuts, case.keep)
    for run in runs(case):
        assert run.sent == tuple(N_STEPS * case.n_accumulations * n for n in run.planned)
    vector_bytes = SEQ_LEN * 32 * case.dtype.itemsize
    total = [sum(run.planned[way] for run in runs(case)) // case.n_data for way in range(2)]
    if case.residual.startswith(("attn_res", "two_phase", "sum")):
        assert total == [case.n_microbatches * plan.n_sent * vector_bytes] * 2
    if case.residual == "standard":
        assert total == [case.n_microbatches * (plan.n_chunks - 1) * vector_bytes] * 2


@pytest.mark.parametrize("cases", [TWO_RANKS[:3], FOUR_RANKS[2:5]], ids=["P=2", "P=4"])
def test_what_is_kept_changes_what_is_sent_and_no_loss(cases):
    sent = [sum(sum(run.sent) for run in runs(case)) for case in cases]
    assert sent[0] > sent[1] > sent[2]
    for step in range(1):
        losses = {run.steps[step].loss for case in cases for run in runs(case)}
        assert len(losses) == 1  # bit for bit
    for case in cases[1:]:
        for kept, sent_again in zip(runs(case), runs(cases[0]), strict=True):
            for name, gradient in kept.steps[0].gradients.items():
                other = sent_again.steps[0].gradients[name]
                assert (gradient - other).abs().max() <= 1e-14 * other.abs().max(), name


def test_with_one_chunk_a_rank_nothing_depends_on_what_is_kept():
    first, *others = (case for case in TWO_RANKS if case.schedule == "1f1b" and is_exact(case))
    assert len(others) == 2
    for other in others:
        for run, expected in zip(runs(other), runs(first), strict=True):
            assert run.sent == expected.sent
            for step, expected_step in zip(run.steps, expected.steps, strict=True):
                assert step.loss == expected_step.loss
                for name, gradient in step.gradients.items():
                    assert torch.equal(gradient, expected_step.gradients[name]), name


def test_the_standard_residual_is_one_process_bit_for_bit():
    (case,) = (case for case in CASES if case.residual == "standard")
    for run in runs(case):
        for step, expected in zip(run.steps[:1], run.expected, strict=False):
            assert step.loss == expected.loss
            for name, gradient in step.gradients.items():
                if name != "model.embed_tokens.weight":  # the sum of two ranks'
                    assert torch.equal(gradient, expected.gradients[name]), name


PLAIN = [c for c in CASES if c.dtype == torch.float32 and c.autocast is None]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_float32_errs_no_more_than_one_process_does(case):
    exact = runs(Case())[0].expected[0].gradients
    for run in runs(case):
        for name, gradient in run.steps[0].gradients.items():
            plain = run.expected[0].gradients[name]
            assert_as_good_as(gradient.double(), plain.double(), exact[name], name)
