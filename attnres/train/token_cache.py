"""Tokens and their tokenizer on disk, found by content and never trusted without their checksum."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def load_entry(file: Path) -> tuple[dict[str, Tensor], str] | None:
    """The tensors and the text of an entry; None where it is absent or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as entry:
            tensors = {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118  safe_open is no dict
            metadata = entry.metadata() or {}
    except (FileNotFoundError, SafetensorError):
        return None
    text = metadata.get("text", "")
    return (tensors, text) if metadata.get("sha256") == _checksum(tensors, text) else None


def store_entry(file: Path, tensors: Mapping[str, Tensor], text: str) -> None:
    """Write an entry beside its place and move it there, so that no reader sees half of one."""
    from attnres.train.checkpoint import write_tensors

    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"text": text, "sha256": _checksum(tensors, text)}
    with tempfile.TemporaryDirectory(prefix="new-", dir=file.parent) as folder:
        draft = Path(folder) / file.name
        write_tensors(draft, dict(tensors), metadata)
        os.replace(draft, file)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
