"""The folder of one run: the only interface between a run and its analysis.

recipe.json  env.json  metrics.jsonl  tensorboard/  checkpoint/  model/
"""

import datetime
import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import torch

from attnres.fields import readable
from attnres.inside import check_inside
from attnres.json_file import read_object
from attnres.train.metrics import whole_until
from attnres.train.recipe import HOW_IT_RUNS

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "numpy", "attention-residuals")
WRITTEN = (  # what a run writes; where it is a link, it is one within the folder
    *(".lock", "recipe.json", "env.json", "metrics.jsonl"),
    *("tensorboard", "checkpoint", "model"),
)
CAME_LATER = {  # fields of a recipe, and what they were before
    "optim.depth_lr_scale": 1.0,
    "pipeline": 1,
    "virtual_stages": 1,
    "schedule": "auto",
    "data_parallel": "fsdp",
    "timeout_s": 600,
}


class RunFolder:
    """The folder `path` for one recipe; ValueError where it holds a run of another."""

    def __init__(self, path: Path, recipe: dict[str, Any]):
        self.path = path
        self.checkpoints = path / "checkpoint"
        self._recipe = recipe
        self._lock: TextIO | None = None
        if (path / "recipe.json").exists():
            _check_same(path, read_object(path / "recipe.json"), recipe)

    def claim(self) -> None:
        """Write the recipe and the environment down, once the run is known to be possible.

        Until `release`, or until the process ends, no other process can.

        Raises:
            ValueError: another process is at work on it, or a link in it leads out of it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN:
            check_inside(self.path / name, self.path)
        self._lock = _locked(self.path / ".lock")
        if not (self.path / "recipe.json").exists():
            write_json(self.path / "env.json", describe_environment())
            write_json(self.path / "recipe.json", self._recipe)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def cut_metrics(self, step: int | None) -> None:
        """Drop what was written after `step`, from which training goes on; all where it is None.

        Raises:
            ValueError: a line that is no row of metrics, and not one that was cut off at the end.
        """
        path = self.path / "metrics.jsonl"
        if path.exists():
            kept = b"" if step is None else whole_until(path, step)
            write_atomically(path, kept.decode())

    def is_done(self) -> bool:
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return bool(lines) and lines[-1].startswith(b'{"kind": "end"') and lines[-1].endswith(b"\n")


def _locked(file: Path) -> TextIO:
    """The file, locked; ValueError where another process has it."""
    lock = file.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise ValueError(f"another process is at work on {file.parent}: it has {file}") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
            raise
    return lock


def describe_environment() -> dict[str, Any]:
    """Versions, commit and machine: what else decides the numbers of a run."""
    return {
        "versions": {"python": platform.python_version()} | _versions(),
        "commit": _commit(),
        "command": sys.argv,
        "platform": platform.platform(),
        "n_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(data, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a failure leaves the old one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _check_same(path: Path, saved: dict[str, Any], recipe: dict[str, Any]) -> None:
    """ValueError that names the first field in which two recipes differ."""
    old, new = settings(saved), settings(recipe)
    for key in dict.fromkeys((*old, *new)):
        if key not in HOW_IT_RUNS and old.get(key) != new.get(key):
            raise ValueError(
                f"{path} holds a run of another recipe: {readable(key)} was {old.get(key)!r}, now "
                f"{new.get(key)!r}; choose another folder, or the same recipe to resume"
            )


def settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """Every field of a recipe by its dotted path, also of one that was written before it was."""
    return CAME_LATER | flatten(recipe)


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested recipe as one level of dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        below = flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {}
        flat |= below or {f"{prefix}{key}": value}
    return flat


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Commit of the package, with + where its files were changed; empty outside a checkout."""
    package = Path(__file__).parents[1]
    git = ["git", "-C", str(package)]
    status = [*git, "status", "--porcelain", "--", str(package)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changes = subprocess.run(status, capture_output=True, text=True)
    except OSError:
        return ""
    if commit.returncode != 0:
        return ""
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
