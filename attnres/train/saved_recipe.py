"""A recipe from the JSON of a run folder, checked as one that is written in Python is."""

from typing import Any

from attnres.fields import build, shown
from attnres.residual import residual_from_json
from attnres.train.data import DataConfig
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe
from attnres.train.run_folder import flatten, settings

PARTS: dict[str, Any] = {"model": ModelConfig, "data": DataConfig, "optim": OptimConfig}


def recipe_from_json(data: Any) -> Recipe:
    """The recipe that `Recipe.to_json` wrote, also before some of its fields were there.

    Raises:
        ValueError: a setting that is unknown, missing, of another type or not possible.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a recipe is an object of settings, got {shown(data)}")
    parts = {name: _part(kind, data, name) for name, kind in PARTS.items()}
    _check_whole(data)
    return build(Recipe, {**data, **parts}, "the recipe")


def _part(kind: Any, data: dict[str, Any], name: str) -> Any:
    part = data.get(name)
    if kind is ModelConfig and isinstance(part, dict) and "residual" in part:
        part = {**part, "residual": residual_from_json(part["residual"])}
    return build(kind, part, f"{name} of the recipe")


def _check_whole(data: dict[str, Any]) -> None:
    """What is missing would be at today's default, whatever it was then."""
    given = settings({**data, "model": dict.fromkeys(data["model"])})  # not into its own objects
    expected = Recipe(name="any").to_json()
    for name in flatten({**expected, "model": dict.fromkeys(expected["model"])}):
        if name not in given:
            raise ValueError(f"the recipe lacks {name}")
