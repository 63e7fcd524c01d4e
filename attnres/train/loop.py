"""One run: tokens in, metrics and checkpoints out.

    tokens_BT -> model -> loss -> gradient -> step, from the newest checkpoint on

The batch of a step depends on the seed and the step alone, never on the model, so every method sees
the same text in the same order and the step is all that the loader has to save.
"""

import math
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attnres.train import checkpoint, data, optim, probe
from attnres.train.recipe import Recipe
from attnres.train.run_folder import Metrics, RunFolder

if TYPE_CHECKING:
    from attnres.models import AttnResForCausalLM

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
    model: "AttnResForCausalLM"
    forward: nn.Module | Callable[..., Any]  # the model, compiled where the recipe says so
    optimizers: Sequence[Optimizer]
    device: torch.device


def train(
    recipe: Recipe,
    path: Path,
    report: Report = lambda step, figures: None,
    tokens: data.TokenData | None = None,
) -> None:
    """Run `recipe` in the folder `path`, from its newest valid checkpoint on.

    Args:
        recipe: what to run; a folder that holds another recipe is refused.
        path: made where it is missing; it then holds recipe, environment, metrics, checkpoints and,
            at the end, `model/` for `from_pretrained`.
        report: called after each step that is logged.
        tokens: of the recipe's data, where they are loaded already.

    Raises:
        ValueError: another recipe, layout or text in the folder, unfit data.
        FloatingPointError: loss or gradient is not finite; checkpoints and metrics stay.
    """
    folder = RunFolder(path, recipe.to_json())
    if folder.is_done():
        return
    tokens = tokens or data.load_data(recipe.data)
    torch.manual_seed(recipe.seed)
    run = _prepare(recipe, tokens)
    folder.claim()
    step = _resume(run, folder)
    folder.cut_metrics(step)
    metrics = Metrics(path, purge_from=0 if step is None else step + 1)
    try:
        _steps(run, folder, metrics, report, step or 0)
        _save_model(run, tokens, path / "model")
        metrics.write("end", recipe.n_steps, peak_memory_bytes=_peak_memory_bytes(run.device))
    finally:
        metrics.close()


def _prepare(recipe: Recipe, tokens: "data.TokenData") -> Run:
    train_RT = data.pack(tokens.train_tokens, recipe.seq_len)
    held_out_RT = data.pack(tokens.validation_tokens, recipe.seq_len)
    stride = math.ceil(len(held_out_RT) / recipe.n_validation_sequences)
    bytes_per_token = tokens.n_validation_bytes / len(tokens.validation_tokens)
    device = _device(recipe.device)
    model = recipe.model.build(len(tokens.tokenizer), recipe.seq_len).train()
    nn.Module.to(model, device)  # transformers' own is beyond pyright
    if recipe.checkpoint_gradients:
        model.activation_checkpointing_enable()
    return Run(
        recipe,
        Batches(train_RT, held_out_RT[::stride], bytes_per_token, data.fingerprint(tokens)),
        model,
        torch.compile(model) if recipe.compile else model,
        optim.build_optimizers(model, recipe.optim),
        device,
    )


def _resume(run: Run, folder: RunFolder) -> int | None:
    """Restore the newest valid checkpoint; its step, or None where there is no checkpoint."""
    newest = checkpoint.newest(folder.checkpoints)
    if newest is None:
        return None
    saved, own = checkpoint.read_state(newest), _state(run)
    if saved.get("residual") != own["residual"]:
        raise ValueError(
            f"{newest} was saved with {saved.get('residual')}, the recipe has {own['residual']}"
        )
    if saved.get("data") != own["data"]:
        place = run.recipe.data.path or "the embedded corpus"
        raise ValueError(f"{newest} was trained on other tokens than {place} now gives")
    return checkpoint.load(newest, run.model, run.optimizers)["step"]


def _state(run: Run) -> dict[str, Any]:
    """What a checkpoint must have been saved with for this run to go on from it."""
    return {"residual": run.model.config.residual_state, "data": run.batches.fingerprint}


def _steps(run: Run, folder: RunFolder, metrics: Metrics, report: Report, step: int) -> None:
    recipe = run.recipe
    if step == 0:
        metrics.write("start", 0, **_describe_model(run))
        _measure(run, metrics, 0)
    pace = Pace(recipe.tokens_per_step)
    while step < recipe.n_steps:
        with pace:
            figures = _step(run, step)
        step += 1
        if _due(step, recipe.log_every, recipe):
            figures["tokens_per_s"] = pace.take()
            metrics.write("train", step, n_tokens=step * recipe.tokens_per_step, **figures)
            report(step, figures)
        if _due(step, recipe.validate_every, recipe):
            figures = validate(run)
            metrics.write("validation", step, **figures)
            report(step, {"validation_loss": figures["loss"]})
        if _due(step, recipe.probe_every, recipe):
            _measure(run, metrics, step)
        if _due(step, recipe.save_every, recipe):
            where, keep = folder.checkpoints, recipe.keep_checkpoints
            checkpoint.save(where, step, run.model, run.optimizers, _state(run), keep)


def _save_model(run: Run, tokens: data.TokenData, path: Path) -> None:
    from safetensors import SafetensorError

    try:
        run.model.save_pretrained(path)
        tokens.tokenizer.save_pretrained(path)
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
    loss = 0.0
    for i in range(recipe.n_accumulations):
        place = step * recipe.n_accumulations + i
        tokens_BT = data.batch_at(run.batches.train_RT, place, recipe.batch_size, recipe.seed)
        part = _loss(run, tokens_BT) / recipe.n_accumulations
        part.backward()
        loss += part.item()
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step} of {recipe.name}")
    max_norm = recipe.optim.clip_norm or math.inf
    grad_norm = nn.utils.clip_grad_norm_(run.model.parameters(), max_norm).item()
    if not math.isfinite(grad_norm):
        raise FloatingPointError(
            f"the gradient norm is {grad_norm} at step {step} of {recipe.name}"
        )
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": loss, "grad_norm": grad_norm, "lr": lr}


def _loss(run: Run, tokens_BT: Tensor) -> Tensor:
    tokens_BT = tokens_BT.to(run.device)
    with _autocast(run):
        return run.forward(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss


@torch.no_grad()
def validate(run: Run) -> dict[str, float]:
    """Mean loss (nats a token) and bits a byte over the held-out sequences."""
    run.model.eval()
    total = n_rows = 0
    for tokens_BT in data.validation_batches(run.batches.validation_RT, run.recipe.batch_size):
        total += _loss(run, tokens_BT).item() * len(tokens_BT)
        n_rows += len(tokens_BT)
    run.model.train()
    loss = total / n_rows
    return {"loss": loss, "bits_per_byte": loss / math.log(2) / run.batches.bytes_per_token}


def _measure(run: Run, metrics: Metrics, step: int) -> None:
    tokens_BT = run.batches.validation_RT[: run.recipe.n_probe_sequences].long().to(run.device)
    with _autocast(run):
        metrics.write("probe", step, **probe.measure(run.model, tokens_BT))


def _describe_model(run: Run) -> dict[str, Any]:
    residual = run.model.residual
    layout = run.model.config.residual_state.get("layout", {})
    return {
        "n_params": sum(p.numel() for p in run.model.parameters()),
        "n_residual_params": sum(p.numel() for p in residual.parameters()),
        "layout_sizes": layout.get("sizes", []),
    }


def _autocast(run: Run):
    if run.recipe.precision == "float32":
        return nullcontext()
    return torch.autocast(run.device.type, torch.bfloat16)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {name!r} is not here: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
