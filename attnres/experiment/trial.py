"""One run of a study: trained in its folder, scored on both held-out parts, told in a row."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from attnres.analysis.runs import load_run
from attnres.experiment.results import Row
from attnres.experiment.study import Study, Trial
from attnres.residual import format_residual
from attnres.train.data import TokenData, fingerprint, pack, validation_batches
from attnres.train.loop import train
from attnres.train.recipe import Recipe

LENGTH = 12  # hexadecimal digits of a fingerprint in a row


def run_trial(
    study: Study,
    trial: Trial,
    folder: Path,
    tokens: TokenData,
    report: Callable[[int], None] = lambda step: None,
) -> Row:
    """Train from where the run's folder in `folder` stands, and score.

    Args:
        tokens: of the study's data, loaded once for many runs.
        report: called with the finished steps, now and then.
    """
    recipe = study.recipe(trial)
    path = folder / recipe.name
    try:
        train(recipe, path, lambda step, figures: report(step), tokens)
        tuning_loss, report_loss = score(path / "model", recipe, tokens, study.n_scored)
    except FloatingPointError:  # diverged, which is a result
        tuning_loss = report_loss = math.inf
    shutil.rmtree(path / "checkpoint", ignore_errors=True)  # three times the size of the model
    run = load_run(path)
    start = run.last("start") or {}
    return Row(
        **trial._asdict(),
        residual=format_residual(recipe.model.residual),
        tuning_loss=tuning_loss,
        report_loss=report_loss,
        n_params=start["n_params"],
        n_residual_params=start["n_residual_params"],
        tokens_per_s=round(run.median("train", "tokens_per_s") or math.nan),
        fingerprint=study.fingerprint,
        tokens=fingerprint(tokens)[:LENGTH],
        torch_version=run.env["versions"]["torch"],
        commit=run.env["commit"][:LENGTH] + run.env["commit"][40:],
    )


def score(folder: Path, recipe: Recipe, tokens: TokenData, n_scored: int) -> tuple[float, float]:
    """Loss of a saved model in nats a token, on the part that tunes and on the one reported."""
    from attnres.models import AttnResForCausalLM

    model = AttnResForCausalLM.from_pretrained(folder).eval()
    losses = []
    for part_RT in held_out_parts(pack(tokens.validation_tokens, recipe.seq_len), n_scored):
        losses.append(_mean_loss(model, part_RT, recipe.batch_size))
    if not all(map(math.isfinite, losses)):
        raise FloatingPointError(f"the held-out loss of {folder} is {losses}")
    return losses[0], losses[1]


def held_out_parts(held_out_RT: Tensor, n_most: int) -> tuple[Tensor, Tensor]:
    """Every other sequence each, thinned evenly to at most `n_most`; no sequence is in both."""
    if len(held_out_RT) < 2:
        raise ValueError(f"{len(held_out_RT)} held-out sequences cannot be parted in two")
    first_RT, second_RT = (_thinned(held_out_RT[i::2], n_most) for i in (0, 1))
    return first_RT, second_RT


def _thinned(sequences_RT: Tensor, n_most: int) -> Tensor:
    n_kept = min(n_most, len(sequences_RT))
    return sequences_RT[torch.arange(n_kept) * len(sequences_RT) // n_kept]


@torch.no_grad()
def _mean_loss(model: torch.nn.Module, sequences_RT: Tensor, batch_size: int) -> float:
    total = 0.0
    for tokens_BT in validation_batches(sequences_RT, batch_size):
        loss = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss
        total += loss.item() * len(tokens_BT)
    return total / len(sequences_RT)
