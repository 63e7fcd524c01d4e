"""One run: tokens in, metrics and checkpoints out.

    tokens_BT -> model -> loss -> gradient -> step, from the newest checkpoint on

The batch of a step depends on the seed and the step alone, never on the model, so every method sees
the same text in the same order and the step is all that the loader has to save.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from attnres.distributed import world
from attnres.train import data, optim
from attnres.train.engine import Engine, build_engine, peak_memory_bytes
from attnres.train.metrics import Metrics, NoMetrics
from attnres.train.moe import ExpertBalance
from attnres.train.recipe import Recipe
from attnres.train.run_folder import RunFolder, settings

Report = Callable[[int, dict[str, float]], None]  # finished steps, newest figures


class Batches(NamedTuple):
    train_RT: Tensor  # all training sequences
    validation_RT: Tensor
    bytes_per_token: float  # of the held-out text
    fingerprint: str  # of all tokens


class Run(NamedTuple):
    """What the loop works on."""

    recipe: Recipe
    batches: Batches
    engine: Engine
    optimizers: Sequence[Optimizer]
    balance: ExpertBalance


def train(
    recipe: Recipe,
    path: Path,
    report: Report = lambda step, figures: None,
    tokens: data.TokenData | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> bool:
    """Run `recipe` in the folder `path`, from its newest valid checkpoint on.

    Args:
        recipe: what to run; a folder that holds another recipe is refused.
        path: made where it is missing; it then holds recipe, environment, metrics, checkpoints and,
            at the end, `model/` for `from_pretrained`.
        report: called after each step that is logged.
        tokens: of the recipe's data, where they are loaded already.
        stops: asked after each step whether to save a checkpoint and return; one process only.

    Returns:
        Whether the run is done; not where it was stopped.

    Raises:
        ValueError: another recipe, layout or text in the folder, another process at work on it,
            unfit data.
        FloatingPointError: loss or gradient is not finite; checkpoints and metrics stay.
    """
    folder = world.together(lambda: RunFolder(path, recipe.to_json()))
    if world.from_first(folder.is_done):
        return True
    tokens = tokens or world.together(lambda: data.load_data(recipe.data))
    torch.manual_seed(recipe.seed)
    run = _prepare(recipe, tokens)
    try:
        world.from_first(folder.claim)
        return _train(run, folder, tokens, report, stops)
    finally:
        folder.release()


def _train(
    run: Run,
    folder: RunFolder,
    tokens: data.TokenData,
    report: Report,
    stops: Callable[[], bool],
) -> bool:
    step = _resume(run, folder)
    metrics = _metrics(run, folder, step)
    try:
        is_done = _steps(run, folder, metrics, report, stops, step or 0)
        if is_done:
            _save_model(run, tokens, folder)
            peak = peak_memory_bytes(run.engine.device)
            metrics.write("end", run.recipe.n_steps, peak_memory_bytes=peak)
        return is_done
    finally:
        metrics.close()
        run.engine.close()


def _metrics(run: Run, folder: RunFolder, step: int | None) -> Metrics | NoMetrics:
    if not run.engine.is_first:
        return NoMetrics()
    folder.cut_metrics(step)
    return Metrics(folder.path, purge_from=0 if step is None else step + 1)


def _prepare(recipe: Recipe, tokens: "data.TokenData") -> Run:
    train_RT = data.pack(tokens.train_tokens, recipe.seq_len)
    held_out_RT = data.pack(tokens.validation_tokens, recipe.seq_len)
    stride = math.ceil(len(held_out_RT) / recipe.n_validation_sequences)
    bytes_per_token = tokens.n_validation_bytes / len(tokens.validation_tokens)
    fingerprint = data.fingerprint(tokens)
    _check_alike(recipe, fingerprint)
    engine = build_engine(recipe, len(tokens.tokenizer))
    return Run(
        recipe,
        Batches(train_RT, held_out_RT[::stride], bytes_per_token, fingerprint),
        engine,
        optim.build_optimizers(engine.module, recipe.optim),
        ExpertBalance(
            *(engine.module, recipe.optim.expert_bias_rate),
            group=engine.data_group,
            stages=engine.stage_group,
        ),
    )


def _check_alike(recipe: Recipe, fingerprint: str) -> None:
    """ValueError where the processes of this run do not have the same run before them."""
    code = {"code of attnres": world.source_digest(), "torch": torch.__version__}
    world.check_alike({"tokens": fingerprint, **code, **settings(recipe.to_json())})


def _resume(run: Run, folder: RunFolder) -> int | None:
    """Restore the newest valid checkpoint; its step, or None where there is no checkpoint."""
    found = run.engine.newest(folder.checkpoints)
    if found is None:
        return None
    (newest, saved), own = found, _state(run)
    if saved.get("residual") != own["residual"]:
        raise ValueError(
            f"{newest} was saved with {saved.get('residual')}, the recipe has {own['residual']}"
        )
    if saved.get("data") != own["data"]:
        place = run.recipe.data.path or "the embedded corpus"
        raise ValueError(f"{newest} was trained on other tokens than {place} now gives")
    run.engine.restore(newest, run.optimizers)
    return saved["step"]


def _state(run: Run) -> dict[str, Any]:
    """What a checkpoint must have been saved with for this run to go on from it."""
    return {"residual": run.engine.config.residual_state, "data": run.batches.fingerprint}


def _steps(
    run: Run,
    folder: RunFolder,
    metrics: Metrics | NoMetrics,
    report: Report,
    stops: Callable[[], bool],
    step: int,
) -> bool:
    """Whether the last step was reached; otherwise it was asked to stop, and has saved."""
    recipe = run.recipe
    if step == 0:
        metrics.write("start", 0, **run.engine.describe())
        _measure(run, metrics, 0)
    pace = Pace(recipe.tokens_per_step)
    while step < recipe.n_steps:
        with pace:
            figures = _step(run, step)
        step += 1
        if _due(step, recipe.log_every, recipe):
            figures["tokens_per_s"] = pace.take()
            metrics.write("train", step, n_tokens=step * recipe.tokens_per_step, **figures)
            if run.engine.is_first:
                report(step, figures)
        if _due(step, recipe.validate_every, recipe):
            figures = validate(run)
            metrics.write("validation", step, **figures)
            if run.engine.is_first:
                report(step, {"validation_loss": figures["loss"]})
        if _due(step, recipe.probe_every, recipe):
            _measure(run, metrics, step)
        is_stopped = world.n_ranks() == 1 and stops()
        if is_stopped or _due(step, recipe.save_every, recipe):
            where, keep = folder.checkpoints, recipe.keep_checkpoints
            run.engine.save(where, step, run.optimizers, _state(run), keep)
        if is_stopped and step < recipe.n_steps:
            return False
    return True


def _save_model(run: Run, tokens: data.TokenData, folder: RunFolder) -> None:
    from safetensors import SafetensorError
    from transformers import GenerationConfig

    path = folder.path / "model"
    try:
        run.engine.export(path, folder.checkpoints)
        tokens.tokenizer.save_pretrained(path)
        ends = {name: getattr(tokens.tokenizer, name) for name in ("eos_token_id", "pad_token_id")}
        GenerationConfig(**ends).save_pretrained(path)  # a text ends as those of the training did
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise OSError(f"cannot save {path}: {error}") from error


def _due(step: int, every: int, recipe: Recipe) -> bool:
    return step % every == 0 or step == recipe.n_steps


class Pace:
    """Tokens a second of the steps run inside it; validation and saving are outside."""

    def __init__(self, tokens_per_step: int):
        self._tokens_per_step = tokens_per_step
        self._n_steps, self._seconds = 0, 0.0

    def __enter__(self):
        self._start = time.perf_counter()

    def __exit__(self, *failure):
        self._n_steps += 1
        self._seconds += time.perf_counter() - self._start

    def take(self) -> float:
        """The pace since the last call."""
        pace = self._n_steps * self._tokens_per_step / self._seconds
        self._n_steps, self._seconds = 0, 0.0
        return pace


def _step(run: Run, step: int) -> dict[str, float]:
    """One optimiser step; the loss before it, the gradient norm and the learning rate."""
    recipe = run.recipe
    lr = optim.set_lr(run.optimizers, recipe.optim, step, recipe.n_steps)
    places = range(step * recipe.n_accumulations, (step + 1) * recipe.n_accumulations)
    loss = run.engine.backward(
        [data.batch_at(run.batches.train_RT, i, recipe.batch_size, recipe.seed) for i in places]
    )
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step} of {recipe.name}")
    grad_norm = run.engine.clip_grad_norm_(recipe.optim.clip_norm or math.inf)
    if not math.isfinite(grad_norm):
        raise FloatingPointError(
            f"the gradient norm is {grad_norm} at step {step} of {recipe.name}"
        )
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss, "grad_norm": grad_norm, "lr": lr, **run.balance.step()}


def validate(run: Run) -> dict[str, float]:
    """Mean loss (nats a token) and bits a byte over the held-out sequences."""
    run.engine.module.eval()
    total = n_rows = 0
    batch_size = run.recipe.batch_size * run.engine.n_batches_of_loss
    for tokens_BT in data.validation_batches(run.batches.validation_RT, batch_size):
        total += run.engine.loss(tokens_BT) * len(tokens_BT)
        n_rows += len(tokens_BT)
    run.engine.module.train()
    loss = total / n_rows
    return {"loss": loss, "bits_per_byte": loss / math.log(2) / run.batches.bytes_per_token}


def _measure(run: Run, metrics: Metrics | NoMetrics, step: int) -> None:
    tokens_BT = run.batches.validation_RT[: run.recipe.n_probe_sequences].long()
    found = run.engine.probe(tokens_BT)
    if found is not None:
        metrics.write("probe", step, **found)
