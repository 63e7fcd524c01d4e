"""One run: its row, its parts of the held-out text, and what is left of its folder."""

import math
from pathlib import Path

import pytest
import torch
from tiny_study import write_study

from attnres.experiment.folder import load_study
from attnres.experiment.study import Trial
from attnres.experiment.trial import held_out_parts, run_trial, score
from attnres.models import AttnResForCausalLM
from attnres.residual import AttnResConfig, parse_residual
from attnres.train.data import load_data, pack

TRIAL = Trial("final", "block", 1e-2, 3)


@pytest.fixture
def study(text, tmp_path):
    return load_study(write_study(tmp_path / "tiny", text))


@pytest.fixture
def tokens(study):
    return load_data(study.base.data)


def test_a_row_says_what_the_run_folder_says(study, tokens, tmp_path):
    steps: list[int] = []
    row = run_trial(study, TRIAL, tmp_path / "runs", tokens, steps.append)
    path = tmp_path / "runs" / TRIAL.name
    assert row.trial == TRIAL
    assert steps[-1] == 10
    assert parse_residual(row.residual) == AttnResConfig(n_blocks=2)
    assert (row.fingerprint, row.torch_version) == (study.fingerprint, torch.__version__)
    model = AttnResForCausalLM.from_pretrained(path / "model").eval()
    assert row.n_params == sum(p.numel() for p in model.parameters())
    assert row.n_residual_params == sum(p.numel() for p in model.residual.parameters())
    assert not (path / "checkpoint").exists()
    parts = held_out_parts(pack(tokens.validation_tokens, study.base.seq_len), study.n_scored)
    for part_RT, loss in zip(parts, (row.tuning_loss, row.report_loss), strict=True):
        ids_RT = part_RT.long()
        with torch.no_grad():
            expected = model(input_ids=ids_RT, labels=ids_RT).loss.item()
        assert loss == pytest.approx(expected, rel=1e-6)
    assert row.tuning_loss != row.report_loss


def test_a_row_that_was_lost_comes_back_from_the_folder(study, tokens, tmp_path):
    first = run_trial(study, TRIAL, tmp_path, tokens)
    steps: list[int] = []
    assert run_trial(study, TRIAL, tmp_path, tokens, steps.append) == first
    assert steps == []


def test_a_run_that_diverges_has_an_infinite_loss(study, tokens, tmp_path):
    row = run_trial(study, TRIAL._replace(lr=1e30), tmp_path, tokens)
    assert row.tuning_loss == row.report_loss == math.inf
    assert row.n_params > 0


def test_a_model_whose_score_is_not_finite_has_diverged(study, tokens, tmp_path):
    run_trial(study, TRIAL, tmp_path, tokens)
    folder = tmp_path / TRIAL.name / "model"
    model = AttnResForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(next(model.parameters()), math.nan)
    model.save_pretrained(folder)
    with pytest.raises(FloatingPointError, match="nan"):
        score(folder, study.recipe(TRIAL), tokens, 4)


@pytest.mark.parametrize(("n_rows", "n_most"), [(2, 1), (9, 2), (40, 7), (41, 100)])
def test_no_sequence_is_in_both_parts_and_both_reach_over_the_text(n_rows, n_most):
    held_out_RT = torch.arange(n_rows).unsqueeze(1)
    parts = [part.flatten().tolist() for part in held_out_parts(held_out_RT, n_most)]
    assert not set(parts[0]) & set(parts[1])
    for i, part in enumerate(parts):
        own = list(range(i, n_rows, 2))
        assert len(part) == len(set(part)) == min(n_most, len(own))
        assert set(part) <= set(own)
        assert part == sorted(part)
        assert part[0] == own[0]
        assert len(own) - own.index(part[-1]) <= math.ceil(len(own) / n_most)


def test_one_sequence_cannot_be_parted():
    with pytest.raises(ValueError, match="1 held-out"):
        held_out_parts(torch.zeros(1, 4), 2)


def test_tokens_given_are_those_that_are_trained_on(study, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr("attnres.train.data.load_data", None)
    run_trial(study, TRIAL, tmp_path, tokens)
    assert (Path(tmp_path) / TRIAL.name / "metrics.jsonl").exists()
