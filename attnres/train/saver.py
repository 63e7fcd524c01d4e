"""Checkpoints of many processes, in the background: each writes its part, the first publishes.

Training waits while tensors are copied. A thread of each process then writes them, and the ranks
tell each other over a group of their own how that went; only where every part is on the disk does
the first rank write the manifest and give the checkpoint its name.
"""

import datetime
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.optim import Optimizer

from attnres.distributed import world
from attnres.train import checkpoint
from attnres.train.sharded import members_of_all, rng_file

Written = tuple[dict[str, Any], str]  # what the manifest says of a rank's files, and why not


class Saver:
    """Saves in the background; one checkpoint at a time."""

    def __init__(self, timeout_s: float):
        timeout = datetime.timedelta(seconds=timeout_s)
        # training goes on over other groups
        self._group: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None

    def wait(self) -> None:
        """Until what was begun is whole on the disk; its failure is raised here, on every rank."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """After a failure: what was begun ends first, well or not."""
        with suppress(OSError, RuntimeError):
            self.wait()
        self._thread.shutdown()

    def save(
        self,
        folder: Path,
        step: int,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        state: dict,
        keep: int,
    ) -> None:
        """Copy what is to be saved, and return; arguments as in `checkpoint.save`."""
        self.wait()
        tensors = _own_tensors(module, optimizers)
        members = members_of_all(module, optimizers)
        state = {**state, "step": step, "n_ranks": world.n_ranks(), "optimizers": members}
        final = folder / f"step-{step:08d}"
        draft = folder / f".tmp-{final.name}"
        world.from_first(lambda: _begin(folder, draft))
        world.together(lambda: _check_seen(draft))
        rng = _own_rng()
        writer = HuggingFaceStorageWriter(str(draft), save_distributed=True)
        begun = async_save(tensors, storage_writer=writer, process_group=self._group)
        self._pending = self._thread.submit(self._finish, begun, rng, draft, final, state, keep)

    def _finish(
        self,
        begun: Any,
        rng: dict[str, Tensor],
        draft: Path,
        final: Path,
        state: dict,
        keep: int,
    ) -> None:
        entries = self._entries_of_all(_written(begun, rng, draft), final)
        said: list[Any] = [""]
        if world.rank() == 0:
            said = [_publish(draft, final, state, entries, keep)]
        dist.broadcast_object_list(said, src=0, group=self._group)
        if said[0]:
            raise OSError(f"cannot save the checkpoint {final}: {said[0]}")

    def _entries_of_all(self, own: Written, final: Path) -> dict[str, Any]:
        """What the manifest says of the parts of all ranks; OSError on each where one failed."""
        found: list[Any] = [None] * world.n_ranks()
        dist.all_gather_object(found, own, group=self._group)
        if causes := [f"rank {i}: {why}" for i, (_, why) in enumerate(found) if why]:
            raise OSError(f"cannot save the checkpoint {final}: {causes[0]}")
        return {name: entry for entries, _ in found for name, entry in entries.items()}


def _written(begun: Any, rng: dict[str, Tensor], draft: Path) -> Written:
    try:
        begun.result()
        checkpoint.write_tensors(draft / rng_file(world.rank()), rng, {})
        own = [draft / _shard_file(world.rank()), draft / rng_file(world.rank())]
        return {path.name: checkpoint.entry_of(path) for path in own if path.exists()}, ""
    except (Exception, CheckpointException) as error:
        return {}, " ".join(str(error).split())


def _own_tensors(module: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    weights = checkpoint.named_tensors(module)
    state = checkpoint.optimizer_tensors(module, optimizers)
    return {name: tensor.detach() for name, tensor in (weights | state).items()}


def _begin(folder: Path, draft: Path) -> None:
    checkpoint.settle(folder)
    draft.mkdir(parents=True)


def _check_seen(draft: Path) -> None:
    if not draft.is_dir():
        raise OSError(f"this process does not see {draft}: a run's folder is one that all share")


def _publish(draft: Path, final: Path, state: dict, entries: dict[str, Any], keep: int) -> str:
    """Give a checkpoint its name; why it could not be done, or nothing."""
    try:
        (draft / "state.json").write_text(json.dumps(state, indent=1))
        entries["state.json"] = checkpoint.entry_of(draft / "state.json")
        checkpoint.write_manifest(draft, checkpoint.SHARDED, entries)
        checkpoint.publish(draft, final)
        checkpoint.prune(final.parent, state["step"], keep)
    except OSError as error:
        return str(error)
    return ""


def _own_rng() -> dict[str, Tensor]:
    place = f"rng/{world.rank()}"
    return {f"{place}/{name}": tensor for name, tensor in checkpoint.rng_tensors().items()}


def _shard_file(rank: int) -> str:
    """As `HuggingFaceStorageWriter` calls it, which counts ranks from 1."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
