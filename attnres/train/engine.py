"""How a model of a run is computed: the loop gives tokens and takes losses, gradients are here.

    backward(batches of one step) -> loss        loss(tokens) -> loss
    clip_grad_norm_(max_norm) -> norm            save, newest and restore of a checkpoint

Tokens are always those of the whole step: an engine of many processes takes its own share.
"""

import resource
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attnres.distributed import world
from attnres.train import checkpoint, probe
from attnres.train.recipe import Recipe

if TYPE_CHECKING:
    from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM


class Engine(ABC):
    """Runs the model of one recipe; batches are int64 BT on the CPU, the same on every process."""

    module: nn.Module  # what this process trains, under the names of the whole model
    config: "AttnResCausalLMConfig"  # of the whole model
    device: torch.device
    n_batches_of_loss: int = 1  # that `loss` is best asked for at once
    is_first: bool = True  # of its processes: it alone writes metrics and reports
    data_group: Any = None  # processes that train the same parameters on other rows
    stage_group: Any = None  # processes that hold the model together; None is this one alone

    @abstractmethod
    def backward(self, batches: Sequence[Tensor]) -> float:
        """Add the gradient of the mean loss of the batches, which are alike in size; that loss."""

    @abstractmethod
    def loss(self, tokens_BT: Tensor) -> float:
        """The mean loss, nats a token, without a gradient."""

    @abstractmethod
    def clip_grad_norm_(self, max_norm: float) -> float:
        """The norm of the whole model's gradient, which is scaled down to at most `max_norm`."""

    @abstractmethod
    def probe(self, tokens_BT: Tensor) -> dict[str, Any] | None:
        """What `attnres.train.probe` measures; None where the model is cut."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Counts of the whole model's parameters, and the sizes of its blocks."""

    def newest(self, folder: Path) -> tuple[Path, dict[str, Any]] | None:
        """The newest whole checkpoint and its state; None if there is none at all."""
        return world.from_first(lambda: _newest(folder))

    @abstractmethod
    def restore(self, path: Path, optimizers: Sequence[Optimizer]) -> None:
        """Load weights, optimizers and generators from a whole checkpoint."""

    @abstractmethod
    def save(
        self, folder: Path, step: int, optimizers: Sequence[Optimizer], state: dict, keep: int
    ) -> None:
        """Save a checkpoint, as `attnres.train.checkpoint.save`."""

    @abstractmethod
    def export(self, path: Path, checkpoints: Path) -> None:
        """The whole model for `from_pretrained`, once it has been saved among `checkpoints`."""

    def close(self) -> None:  # noqa: B027  one process has nothing to wait for
        """Wait for what is written in the background; a run ends with it."""


class OneProcess(Engine):
    """The model whole, on one device."""

    def __init__(self, recipe: Recipe, vocab_size: int):
        self.device = device_of(world.own_device(recipe.device))
        self.model: AttnResForCausalLM = recipe.model.build(vocab_size, recipe.seq_len).train()
        self.module = self.model
        self.config = self.model.config
        nn.Module.to(self.model, self.device)  # transformers' own is beyond pyright
        if recipe.checkpoint_gradients:
            self.model.activation_checkpointing_enable()
        self.forward: Callable[..., Any] = self.model
        if recipe.compile:
            self.forward = torch.compile(self.model)
        self._is_exact = recipe.precision == "float32"

    def backward(self, batches: Sequence[Tensor]) -> float:
        total = 0.0
        for tokens_BT in batches:
            part = self._loss(tokens_BT) / len(batches)
            part.backward()
            total += part.item()
        return total

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor) -> float:
        return self._loss(tokens_BT).item()

    def clip_grad_norm_(self, max_norm: float) -> float:
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm).item()

    def probe(self, tokens_BT: Tensor) -> dict[str, Any] | None:
        with self._autocast():
            return probe.measure(self.model, tokens_BT.to(self.device))

    def describe(self) -> dict[str, Any]:
        return counts(self.model)

    def restore(self, path: Path, optimizers: Sequence[Optimizer]) -> None:
        if checkpoint.is_sharded(path):
            from attnres.train import sharded  # torch.distributed.checkpoint takes a second

            sharded.load(path, self.model, optimizers)
        else:
            checkpoint.load(path, self.model, optimizers)

    def save(
        self, folder: Path, step: int, optimizers: Sequence[Optimizer], state: dict, keep: int
    ) -> None:
        checkpoint.save(folder, step, self.model, optimizers, state, keep)

    def export(self, path: Path, checkpoints: Path) -> None:
        self.model.save_pretrained(path)

    def _loss(self, tokens_BT: Tensor) -> Tensor:
        tokens_BT = tokens_BT.to(self.device)
        with self._autocast():
            return self.forward(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._is_exact:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def counts(model: "AttnResForCausalLM") -> dict[str, Any]:
    """Parameters of a whole model, those of its residual, and sublayers of each block."""
    layout = model.config.residual_state.get("layout", {})
    return {
        "n_params": sum(p.numel() for p in model.parameters()),
        "n_residual_params": sum(p.numel() for p in model.residual.parameters()),
        "layout_sizes": layout.get("sizes", []),
    }


def _newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    path = checkpoint.newest(folder)
    return None if path is None else (path, checkpoint.read_state(path))


def build_engine(recipe: Recipe, vocab_size: int) -> Engine:
    """The engine of a recipe, with fresh weights from torch's global generator.

    Where there is a group of processes, each of them builds its part.

    Raises:
        ValueError: a number of processes that is no multiple of the recipe's stages.
    """
    world.check_n_ranks(recipe.pipeline)
    if world.n_ranks() == 1:
        return OneProcess(recipe, vocab_size)
    from attnres.train.parallel import DataParallel, Pipelined

    device = world.together(lambda: device_of(world.own_device(recipe.device)))
    mesh = world.mesh_of(device.type, recipe.pipeline, recipe.timeout_s)
    if recipe.pipeline > 1:
        return Pipelined(recipe, vocab_size, device, mesh)
    return DataParallel(recipe, vocab_size, mesh["data"])


def device_of(name: str) -> torch.device:
    """A device by its name, "auto" for CUDA where there is one; ValueError where it is not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {name!r} is not here: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
