"""Read run folders: recipe.json, env.json and metrics.jsonl, the only word a run leaves."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from attnres.fields import build
from attnres.json_file import read_object
from attnres.layout import check_count
from attnres.train.data import DataConfig
from attnres.train.metrics import Row, is_count, read_rows
from attnres.train.run_folder import settings

COUNTS = ("n_steps", "seed", "batch_size", "seq_len")  # fields of a recipe that are computed with


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder; `metrics` holds its lines by kind, in the order of their steps."""

    path: Path
    recipe: Row
    env: Row = field(default_factory=dict)
    metrics: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def method(self) -> str:
        return str(entry(self.recipe, "model.residual.method", "unknown"))

    @property
    def seed(self) -> int:
        return self.recipe.get("seed", 0)

    @property
    def data(self) -> DataConfig:
        """What it was trained on; ValueError where its recipe does not say."""
        return build(DataConfig, self.recipe.get("data"), f"data of {self.path / 'recipe.json'}")

    @property
    def seq_len(self) -> int:
        """Tokens; ValueError where its recipe does not say."""
        check_count(f"seq_len of {self.path / 'recipe.json'}", self.recipe.get("seq_len"))
        return self.recipe["seq_len"]

    @property
    def is_standard(self) -> bool:
        return self.method == "standard"

    @property
    def is_finished(self) -> bool:
        return self.last("end") is not None

    @property
    def n_steps(self) -> int | None:
        return self.recipe.get("n_steps")

    @property
    def n_steps_done(self) -> int:
        return max((rows[-1]["step"] for rows in self.metrics.values()), default=0)

    @property
    def layout_sizes(self) -> list[int]:
        """Sublayers in each block, empty for a method without blocks."""
        return (self.last("start") or {}).get("layout_sizes") or []

    @property
    def block_ends(self) -> list[int]:
        """Depths of the sublayers that close a block, empty where every sublayer does."""
        if max(self.layout_sizes, default=1) == 1:
            return []
        return [n_closed - 1 for n_closed in accumulate(self.layout_sizes)]

    def rows(self, kind: str) -> list[Row]:
        return self.metrics.get(kind, [])

    def last(self, kind: str) -> Row | None:
        rows = self.rows(kind)
        return rows[-1] if rows else None

    def column(self, kind: str, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the lines that have the value."""
        rows = [row for row in self.rows(kind) if row.get(key) is not None]
        return [row["step"] for row in rows], [row[key] for row in rows]

    def median(self, kind: str, key: str) -> float | None:
        _, values = self.column(kind, key)
        return statistics.median(values) if values else None


def load_runs(folder: Path) -> list[Run]:
    """All runs directly below a folder, the standard residual first, then by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"no folder of runs at {folder}")
    paths = [path.parent for path in folder.glob("*/recipe.json")]
    if not paths:
        raise ValueError(f"no run in {folder}: no folder directly below it has a recipe.json")
    runs = [load_run(path) for path in paths]
    return sorted(runs, key=lambda run: (not run.is_standard, run.name))


def load_run(path: Path) -> Run:
    """One run, finished or not: what it has not written yet is empty."""
    env, metrics = path / "env.json", path / "metrics.jsonl"
    return Run(
        path=path,
        recipe=_read_recipe(path / "recipe.json"),
        env=read_object(env) if env.exists() else {},
        metrics=_by_kind(metrics) if metrics.exists() else {},
    )


def entry(nested: Row, dotted: str, default: Any = None) -> Any:
    """The value at a path such as "model.residual.method"."""
    value: Any = nested
    for key in dotted.split("."):
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def differing_fields(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Recipe fields that are not the same in all runs, one value a run, None where absent."""
    recipes = [settings(run.recipe) for run in runs]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key != "name")
    values = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def _read_recipe(path: Path) -> Row:
    recipe = read_object(path)
    for name in COUNTS:
        if name in recipe and not is_count(recipe[name]):
            raise ValueError(f"{path}: {name} is {recipe[name]!r}, not an integer")
    return recipe


def _by_kind(path: Path) -> dict[str, list[Row]]:
    """A resumed run repeats steps, and the later line stands."""
    metrics: dict[str, list[Row]] = {}
    for _, row in read_rows(path):
        rows = metrics.setdefault(row["kind"], [])
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return metrics
