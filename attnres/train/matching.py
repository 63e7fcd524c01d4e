"""Whether what a checkpoint holds is of this model and these optimizers; before anything changes.

Names, shapes and dtypes come from a file that may be somebody else's or damaged, so each is held
to what is here, and what does not fit is a ValueError that names the first.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnres.fields import readable, shown

RNG_DTYPE = torch.uint8


def check_weights(path: Path, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    for name in {**own, **saved}:
        there, here = kind_of(saved.get(name)), kind_of(own.get(name))
        if there != here:
            what = f"{readable(name)} is {there} in the checkpoint"
            raise ValueError(f"{path}: {what}, {here} in the model")


def kind_of(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


def check_members(path: Path, saved: Any, own: list[dict]) -> None:
    """Of every optimizer its type and the names of its parameters."""
    if not _are_members(saved):
        raise ValueError(f"{path}: no list of optimizers, but {shown(saved)}")
    there, here = [[member["type"] for member in members] for members in (saved, own)]
    if there != here:
        raise ValueError(f"{path}: optimizers {there} in the checkpoint, {here} to be restored")
    for index, (old, new) in enumerate(zip(saved, own, strict=True)):
        odd = sorted(set(old["params"]) ^ set(new["params"]))
        if odd:
            name = readable(odd[0])
            where = "in the checkpoint" if odd[0] in old["params"] else "to be restored"
            raise ValueError(f"{path}: optimizer {index} has {name} only {where}")


def check_state(
    path: Path, shapes: Mapping[str, Sequence[int]], members: list[dict], own: nn.Module
) -> None:
    """Each entry belongs to a parameter, whose shape it has or none, and all have the same."""
    params = dict(own.named_parameters())
    keys: dict[tuple[int, str], set[str]] = {}
    for full_name, shape in shapes.items():
        index, name, key = split_name(full_name)
        if not 0 <= index < len(members) or name not in members[index]["params"]:
            raise ValueError(f"{path}: {shown(full_name)} is of no parameter of an optimizer")
        if name in params and tuple(shape) not in ((), tuple(params[name].shape)):
            found, here = list(shape), list(params[name].shape)
            raise ValueError(f"{path}: {full_name} has shape {found}, its parameter {here}")
        keys.setdefault((index, name), set()).add(key)
    for index in range(len(members)):
        several = {tuple(sorted(found)) for (of, _), found in keys.items() if of == index}
        if len(several) > 1:
            raise ValueError(f"{path}: parameters of optimizer {index} have {sorted(several)}")


def split_name(full_name: str) -> tuple[int, str, str]:
    """Optimizer, parameter and key of "0/name/key"; the optimizer is -1 where it is none."""
    index, _, rest = full_name.partition("/")
    name, _, key = rest.rpartition("/")
    return int(index) if index.isascii() and index.isdecimal() else -1, name, key


def check_rng(path: Path, saved: Mapping[str, Tensor]) -> None:
    own = torch.get_rng_state()
    if kind_of(saved.get("cpu")) != kind_of(own):
        raise ValueError(
            f"{path}: the generator is {kind_of(saved.get('cpu'))}, {kind_of(own)} here"
        )
    if "cuda" in saved and saved["cuda"].dtype != RNG_DTYPE:
        raise ValueError(f"{path}: the generator of CUDA is {kind_of(saved['cuda'])}")


def _are_members(saved: Any) -> bool:
    return isinstance(saved, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("type"), str)
        and isinstance(each.get("params"), list)
        and all(isinstance(name, str) for name in each["params"])
        for each in saved
    )
