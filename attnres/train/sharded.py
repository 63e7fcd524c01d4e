"""Checkpoints that many processes write (`saver`), each its own part, and any number of them reads.

    <run>/checkpoint/step-00000100/
        shard-00001-model-00001-of-00001.safetensors    what the first rank holds
        rng-00000.safetensors                           the generators of the first rank
        state.json  manifest.json                       as in attnres.train.checkpoint

Weights have the names of the whole model, optimizer state <optimizer>/<name>/<key>, so neither says
how many ranks there were. `torch.distributed.checkpoint` divides and joins tensors; its files here
are safetensors, whose headers say where a part belongs, so nothing is unpickled on loading. A
checkpoint of one process is read the same way. The folder is one that all processes see.
"""

import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.optim import Optimizer

from attnres.distributed import world
from attnres.fields import readable
from attnres.train import checkpoint, matching

if TYPE_CHECKING:
    from attnres.models import AttnResCausalLMConfig

Shapes = dict[str, TensorStorageMetadata]


def load(path: Path, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Restore weights and optimizers in place, and generators where there are as many ranks.

    The checkpoint is whole; it may be of other ranks or of one process. With other ranks than it
    was saved on, each draws from a generator of its own from here on.

    Raises:
        ValueError: on every rank the same, if a name, a shape or a dtype differs; nothing has been
            changed then.
    """
    reader, shapes = world.together(lambda: _opened(path))
    own = {name: each.detach() for name, each in checkpoint.named_tensors(module).items()}
    world.together(lambda: _check_weights(path, shapes, own))
    members = world.together(lambda: members_of_all(module, optimizers))
    saved = world.together(lambda: _saved_members(path))
    matching.check_members(path, saved, members)
    states = {
        name: each.size for name, each in shapes.items() if name.partition("/")[0].isdecimal()
    }
    world.together(lambda: matching.check_state(path, states, members, module))
    rng = world.together(lambda: _read_rng(path))
    params = dict(module.named_parameters())
    wanted = dict(own)
    for optimizer in optimizers:
        optimizer.state.clear()
    for name, place in _places(shapes, params, optimizers).items():
        wanted[name] = place
    if wanted:
        _fill(wanted, reader, is_alone=world.n_ranks() == 1)
    _restore_rng(path, rng)


def read_weights(path: Path) -> dict[str, Tensor]:
    """All weights of a whole checkpoint, under the names of the whole model, in this process."""
    reader, shapes = _opened(path)
    tensors = {
        name: torch.empty(shapes[name].size, dtype=shapes[name].properties.dtype)
        for name in _weight_names(shapes)
    }
    _fill(tensors, reader, is_alone=True)
    return tensors


def _opened(path: Path) -> tuple[HuggingFaceStorageReader, Shapes]:
    """The files' reader and what their headers say; ValueError for headers that are damaged."""
    from safetensors import SafetensorError

    reader = HuggingFaceStorageReader(str(path))
    try:
        shapes = cast(Shapes, reader.read_metadata().state_dict_metadata)
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: the parts of its tensors cannot be read: {error}") from error
    for name, saved in shapes.items():
        if sum(prod(part.sizes) for part in saved.chunks) != prod(saved.size):
            raise ValueError(f"{path}: the parts of {readable(name)} are not the whole of it")
    return reader, shapes


def _fill(tensors: dict[str, Tensor], reader: HuggingFaceStorageReader, is_alone: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # so it is here
            load_parts(cast(dict[str, Any], tensors), storage_reader=reader, no_dist=is_alone)
    except CheckpointException as error:
        cause = next((each for each, _ in error.failures.values()), error)
        raise ValueError(f"{reader.path}: parts of its tensors do not fit: {cause}") from error


def export(config: "AttnResCausalLMConfig", checkpoints: Path, path: Path) -> None:
    """Write the weights of the newest checkpoint for `from_pretrained`, from this process alone."""
    from attnres.models import AttnResForCausalLM

    newest = checkpoint.newest(checkpoints)
    assert newest is not None
    model: Any = AttnResForCausalLM(config)
    named = checkpoint.named_tensors(model)
    with torch.no_grad():
        for name, weight in read_weights(newest).items():
            named[name].copy_(weight)
    model.save_pretrained(path)


def members_of_all(module: nn.Module, optimizers: Sequence[Optimizer]) -> list[dict]:
    """Of every optimizer its type, and the names of its parameters over all ranks."""
    found = world.gathered(checkpoint.members_of(module, optimizers))
    if len({tuple(member["type"] for member in members) for members in found}) > 1:
        raise ValueError("the processes differ in their optimizers")
    return [
        {"type": same[0]["type"], "params": sorted({n for each in same for n in each["params"]})}
        for same in zip(*found, strict=True)
    ]


def _saved_members(path: Path) -> Any:
    state = checkpoint.read_state(path)
    if "optimizers" in state:
        return state["optimizers"]
    _, metadata = checkpoint.read_tensors(path / "optimizer.safetensors")
    return checkpoint.saved_members(path, metadata)


def _check_weights(path: Path, shapes: Shapes, own: dict[str, Tensor]) -> None:
    here = set().union(*world.gathered(set(own)))
    for name in [*own, *sorted(set(_weight_names(shapes)) - here)]:
        there, mine = _kind(shapes.get(name)), matching.kind_of(own.get(name))
        if there != mine:
            what = f"{readable(name)} is {there} in the checkpoint"
            raise ValueError(f"{path}: {what}, {mine} in the model")


def _kind(saved: TensorStorageMetadata | None) -> str:
    return "absent" if saved is None else f"{tuple(saved.size)} {saved.properties.dtype}"


def _weight_names(shapes: Shapes) -> list[str]:
    return [name for name in shapes if "/" not in name and name not in ("cpu", "cuda")]


def _places(
    shapes: Shapes, params: dict[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> dict[str, Tensor]:
    """Where the state of this rank's parameters goes, zeros until it is loaded."""
    places: dict[str, Tensor] = {}
    for full_name, saved in shapes.items():
        index, _, rest = full_name.partition("/")
        name, _, key = rest.rpartition("/")
        if index.isdecimal() and name in params:
            optimizer, param = optimizers[int(index)], params[name]
            optimizer.state[param][key] = _place(saved, param, checkpoint.on_host(optimizer, key))
            places[full_name] = optimizer.state[param][key]
    return places


def _place(saved: TensorStorageMetadata, param: Tensor, is_on_host: bool) -> Tensor:
    """Sharded as its parameter where it has its shape."""
    dtype = saved.properties.dtype
    if saved.size == param.shape:
        return torch.zeros_like(param, dtype=dtype, requires_grad=False)
    device = "cpu" if is_on_host else param.device
    return torch.zeros(saved.size, dtype=dtype, device=device)


def _read_rng(path: Path) -> dict[str, Tensor]:
    """This rank's generators; none where other ranks saved them."""
    state = checkpoint.read_state(path)
    if state.get("n_ranks", 1) != world.n_ranks():
        return {}
    file = path / rng_file(world.rank())
    saved, _ = checkpoint.read_tensors(file if file.exists() else path / "rng.safetensors")
    rng = {name.rpartition("/")[2]: each for name, each in saved.items()}
    matching.check_rng(path, rng)
    return rng


def _restore_rng(path: Path, rng: dict[str, Tensor]) -> None:
    if rng:
        checkpoint.restore_rng(rng)
        return
    step = checkpoint.read_state(path)["step"]
    torch.manual_seed(step * world.n_ranks() + world.rank())


def rng_file(rank: int) -> str:
    """Where a rank's generators are in a checkpoint."""
    return f"rng-{rank:05d}.safetensors"
