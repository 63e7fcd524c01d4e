"""A run's training state on disk: whole or absent, whenever the process is killed.

    <run>/checkpoint/step-00000100/
        model.safetensors       weights and buffers; tied ones once, under their first name
        optimizer.safetensors   <optimizer index>/<parameter name>/<key>
        rng.safetensors         torch's generators: cpu, and cuda of the current device
        state.json              the step, and what the caller gave
        manifest.json           size and sha256 of the others; written last

A checkpoint is written under a temporary name, reaches the disk, and is renamed. One process
writes. While a step is replaced, its old checkpoint is step-00000100.old, as good as any other.
Learning rates and other settings of the optimizers are not saved: they follow from the recipe.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attnres.fields import shown
from attnres.inside import check_plain
from attnres.json_file import parse_object, read_object
from attnres.train.matching import (
    check_members,
    check_rng,
    check_state,
    check_weights,
    split_name,
)

FORMAT = 1
SHARDED = 2  # of many processes: attnres.train.sharded
Contents = dict[str, tuple[dict[str, Tensor], dict[str, str]]]  # by file: tensors, metadata
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    state: dict,
    keep: int = 2,
) -> Path:
    """Save under `folder`, and return the new checkpoint.

    A failure leaves all earlier checkpoints, and raises an OSError with the path and the cause.

    Args:
        state: JSON values; the step is added.
        keep: how many checkpoints up to this step remain; those of later steps are left alone.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step {step}, keep {keep}: step is at least 0 and keep at least 1")
    if state.get("step", step) != step:
        raise ValueError(f"the state says step {state['step']!r}, the checkpoint is of step {step}")
    contents = _contents(model, optimizers)
    text = json.dumps(state | {"step": step}, indent=1)
    final = folder / f"step-{step:08d}"
    try:
        settle(folder)
        _write(folder / f".tmp-{final.name}", contents, text)
        publish(folder / f".tmp-{final.name}", final)
    except BaseException as error:
        with suppress(OSError):
            settle(folder)
        if isinstance(error, OSError):
            cause = f"cannot save the checkpoint: {error.strerror or error}"
            raise OSError(error.errno, cause, str(final)) from error
        raise
    prune(folder, step, keep)
    return final


def prune(folder: Path, step: int, keep: int) -> None:
    """Leave `keep` checkpoints of those up to `step`."""
    settle(folder)
    for path in [path for path in checkpoints_in(folder) if _step(path) <= step][:-keep]:
        discard(path)


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; None if there is none at all.

    A damaged one is named in a warning and passed over; if all are damaged, ValueError.
    """
    damaged = []
    for path in reversed(checkpoints_in(folder)):
        what = damage(path)
        if what is None:
            return path
        damaged.append(f"{path}: {what}")
        warnings.warn(f"damaged checkpoint passed over: {damaged[-1]}", stacklevel=2)
    if damaged:
        raise ValueError(f"no checkpoint is whole: {'; '.join(damaged)}")
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None if every byte is as it was written."""
    try:
        _check_no_links(path)
        entries = _read_manifest(path)
        for name, size_bytes, sha256 in entries:
            if (actual := (path / name).stat().st_size) != size_bytes:
                return f"{name} has {actual} bytes in place of {size_bytes}"
            if sha256_of(path / name) != sha256:
                return f"{name} differs from its sha256"
        listed = {name for name, _, _ in entries}
        for file in sorted(path.glob("*.safetensors")):
            if file.name not in listed:
                return f"{file.name} is not in manifest.json"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _check_no_links(path: Path) -> None:
    """A checkpoint is written without; one would let its folder reach out of the run's."""
    for each in (path, *path.glob("*")):
        if each.is_symlink():
            raise ValueError(f"{each.name} is a link")


def is_sharded(path: Path) -> bool:
    """Whether a whole checkpoint was written by many processes."""
    return read_object(path / "manifest.json")["format"] == SHARDED


def _read_manifest(path: Path) -> list[tuple[str, int, str]]:
    """Name, size in bytes and sha256 of every file."""
    file = path / "manifest.json"
    try:
        manifest = parse_object(file.read_text(encoding="utf-8"))
        if manifest["format"] in (FORMAT, SHARDED):
            return _entries(manifest, file)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"manifest.json is damaged: {error}") from error
    known = f"known are {FORMAT} and {SHARDED}"
    raise ValueError(f"manifest.json has format {shown(manifest['format'])}, {known}")


def _entries(manifest: dict[str, Any], file: Path) -> list[tuple[str, int, str]]:
    files = manifest["files"]
    names = FILES if manifest["format"] == FORMAT else sorted(files)
    entries = [(check_plain(name, file), files[name]) for name in names]
    return [(name, entry["size_bytes"], entry["sha256"]) for name, entry in entries]


def load(path: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> dict:
    """Restore weights, optimizers and generators in place; return the state, with its step.

    The model and the optimizers are those that were saved, built anew. If a name, shape or dtype
    differs, ValueError names the first, and nothing has been changed.
    """
    if what := damage(path):
        raise ValueError(f"{path}: {what}")
    weights, _ = read_tensors(path / "model.safetensors")
    saved, metadata = read_tensors(path / "optimizer.safetensors")
    rng, _ = read_tensors(path / "rng.safetensors")
    own, members = named_tensors(model), members_of(model, optimizers)
    check_weights(path, weights, own)
    check_members(path, saved_members(path, metadata), members)
    check_state(path, {name: each.shape for name, each in saved.items()}, members, model)
    check_rng(path, rng)
    state = read_state(path)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    _restore_optimizers(saved, dict(model.named_parameters()), optimizers)
    restore_rng(rng)
    return state


def read_state(path: Path) -> dict:
    """The state of a whole checkpoint, with its step; nothing is restored."""
    state = read_object(path / "state.json")
    step = state.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"{path / 'state.json'} is damaged: its step is {shown(step)}")
    return state


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; ValueError where it is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no dict
            return tensors, opened.metadata() or {}
    except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def saved_members(path: Path, metadata: dict[str, str]) -> Any:
    """What the file of optimizer state says of the optimizers."""
    try:
        return json.loads(metadata.get("optimizers", ""))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: optimizer.safetensors names no optimizers") from error


def _contents(model: nn.Module, optimizers: Sequence[Optimizer]) -> Contents:
    members = json.dumps(members_of(model, optimizers))
    return {
        "model.safetensors": (detached(named_tensors(model)), {}),
        "optimizer.safetensors": (
            detached(optimizer_tensors(model, optimizers)),
            {"optimizers": members},
        ),
        "rng.safetensors": (rng_tensors(), {}),
    }


def detached(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict itself, no copies, each tied tensor under its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}; only tensors can be saved")
        first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def members_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[dict]:
    """Of every optimizer its type and the names of its parameters."""
    names = {id(param): name for name, param in model.named_parameters()}
    members = []
    for index, optimizer in enumerate(optimizers):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        foreign = [tuple(param.shape) for param in params if id(param) not in names]
        if foreign:
            raise ValueError(
                f"optimizer {index} has a parameter of shape {foreign[0]} that the model has not"
            )
        params = sorted(names[id(param)] for param in params)
        members.append({"type": type(optimizer).__name__, "params": params})
    return members


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    names = {id(param): name for name, param in model.named_parameters()}
    tensors = {}
    for index, optimizer in enumerate(optimizers):
        for param, values in optimizer.state.items():
            for key, value in values.items():
                name = f"{index}/{names[id(param)]}/{key}"
                if not isinstance(value, Tensor):
                    raise ValueError(f"{name} is {value!r}; only tensors can be saved")
                tensors[name] = value
    return tensors


def rng_tensors() -> dict[str, Tensor]:
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def restore_rng(tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def _restore_optimizers(
    saved: dict[str, Tensor], params: dict[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> None:
    """Past `Optimizer.load_state_dict`, which would cast the state to the parameter's dtype."""
    for optimizer in optimizers:
        optimizer.state.clear()
    for full_name, tensor in saved.items():
        index, name, key = split_name(full_name)
        optimizer, param = optimizers[index], params[name]
        device = torch.device("cpu") if on_host(optimizer, key) else param.device
        optimizer.state[param][key] = tensor.to(device, copy=True)


def on_host(optimizer: Optimizer, key: str) -> bool:
    """PyTorch keeps the step count on the CPU, unless the update is fused or captured."""
    group = optimizer.param_groups[0]
    return key == "step" and not (group.get("fused") or group.get("capturable"))


def _write(folder: Path, contents: Contents, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(text)
    for name, (tensors, metadata) in contents.items():
        write_tensors(folder / name, tensors, metadata)
        shutil.copymode(folder / "state.json", folder / name)  # safetensors: for the owner alone
    write_manifest(folder, FORMAT, {name: entry_of(folder / name) for name in FILES})


def entry_of(path: Path) -> dict[str, Any]:
    """What the manifest says of a file, which is on the disk then."""
    fsync(path)
    return {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}


def write_manifest(folder: Path, version: int, entries: dict[str, dict[str, Any]]) -> None:
    """The last file of a checkpoint."""
    manifest = {"format": version, "files": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for name in ("manifest.json", "."):
        fsync(folder / name)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """One safetensors file; OSError where it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # what safetensors makes of a full disk
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error


def publish(temporary: Path, final: Path) -> None:
    if final.exists():
        os.rename(final, f"{final}.old")
    os.rename(temporary, final)
    fsync(final.parent)


def settle(folder: Path) -> None:
    """Delete what a killed process left, and finish or undo the replacement that it was in."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover)
    for old in folder.glob("step-*.old"):
        if old.with_suffix("").exists():
            discard(old)
        else:
            os.rename(old, old.with_suffix(""))


def discard(path: Path) -> None:
    """Delete; renamed first, so that no half of it ever has a checkpoint's name.

    Of a link the link alone: what it leads to was not written here.
    """
    if path.is_symlink():
        path.unlink()
        return
    doomed = path.with_name(f".tmp-doomed-{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def checkpoints_in(folder: Path) -> list[Path]:
    """Oldest first; of one step, the replaced before its replacement."""
    names = re.compile(r"step-\d{8,}(\.old)?")
    paths = [path for path in folder.glob("step-*") if names.fullmatch(path.name)]
    return sorted(paths, key=lambda path: (_step(path), not path.suffix))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
