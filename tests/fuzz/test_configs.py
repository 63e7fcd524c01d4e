"""Residual configs and recipes from JSON: the same again, or one line that says what is wrong."""

import json
import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from drawn import JSON, LEFT_OUT, SCALARS, assert_one_line, changed, little_memory, paths_in
from hypothesis import example, given
from hypothesis import strategies as st

from attnres.residual import (
    RESIDUALS,
    format_residual,
    parse_residual,
    residual_from_json,
    residual_to_json,
)
from attnres.residual.ablations import CHOICES
from attnres.train.recipe import Recipe
from attnres.train.recipes import RECIPES
from attnres.train.saved_recipe import recipe_from_json

METHODS: Any = st.sampled_from(sorted(RESIDUALS))
NUMBERS = st.integers(1, 8) | st.floats(0.01, 2)
WORDS = sorted(
    {word for kind in RESIDUALS.values() for hint in get_type_hints(kind).values()
     for word in (get_args(hint) if get_origin(hint) is Literal else ())}
    | {word for words in CHOICES.values() for word in words}
)  # fmt: skip
LIKELY = NUMBERS | st.booleans() | st.sampled_from(WORDS)


@st.composite
def residuals(draw):
    """Often right: a method with one or two of its own settings."""
    method = draw(METHODS)
    names = [each.name for each in fields(RESIDUALS[method])] or ["eps"]
    names = st.sampled_from(names) | st.sampled_from(["block_size", "method", "Eps", ""])
    settings = draw(st.dictionaries(names, LIKELY | JSON, max_size=2))
    return {**settings, "method": method}


@given(data=residuals() | JSON)
@example(data={"method": "attn_res", "n_heads": "3"})
@example(data={"method": "highway", "bias": float("nan")})
@example(data={"method": "hyper", "dynamic": 1})
@example(data={"method": ["attn_res"]})
def test_a_residual_is_the_same_again_or_refused(data):
    try:
        config = residual_from_json(data)
    except ValueError as error:
        assert_one_line(error)
        return
    saved = json.loads(json.dumps(residual_to_json(config), allow_nan=False))
    assert {**saved, **{k: v for k, v in data.items() if v is not None}} == saved
    assert residual_from_json(saved) == config
    assert parse_residual(format_residual(config)) == config


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"method": "hyper", "dynamic": 1}, "dynamic must be"),
        ({"method": "laurel", "weights": "yes"}, "weights must be"),
        ({"method": "grn", "version": "3"}, "'3'"),
        ({"method": "attn_res", "query": 1}, "got 1"),
        ({"method": ["attn_res"]}, "no residual method ['attn_res']"),
        ([], "got []"),
    ],
)
def test_a_value_of_another_type_is_named(data, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        residual_from_json(data)


@given(data=residuals(), n_sublayers=st.integers(1, 12))
def test_a_config_describes_itself_or_refuses_the_number_of_sublayers(data, n_sublayers):
    try:
        config = residual_from_json(data)
        with little_memory():
            described = config.describe(n_sublayers)
    except ValueError as error:
        assert_one_line(error)
    else:
        assert json.loads(json.dumps(described, allow_nan=False)) == described


@given(
    text=st.text(max_size=12)
    | st.builds(
        "{}:{}={}".format, METHODS, st.sampled_from(["eps", "n_blocks", "ways", "x"]), SCALARS
    )
)
@example(text="attn_res:n_blocks=" + "9" * 5000)
@example(text="attn_res:eps=nan")
def test_a_residual_in_words_is_the_same_again_or_refused(text):
    try:
        config = parse_residual(text)
    except ValueError as error:
        assert_one_line(error)
    else:
        assert parse_residual(format_residual(config)) == config


WHOLE = json.loads(json.dumps(RECIPES["demo"]().to_json()))
PLACES = st.sampled_from(paths_in(WHOLE))


def test_every_recipe_is_the_same_again():
    for name, recipe in RECIPES.items():
        own = recipe()
        assert recipe_from_json(json.loads(json.dumps(own.to_json()))) == own, name


@given(path=PLACES, value=JSON | LIKELY | st.just(LEFT_OUT))
@example(path=("n_steps",), value=True)
@example(path=("optim", "lr"), value="0.1")
@example(path=("data", "path"), value=None)
@example(path=("model", "n_layers"), value=10**12)
@example(path=("name",), value="../x")
def test_a_recipe_with_one_other_value_is_as_it_says_or_refused(path, value):
    data = changed(WHOLE, path, value)
    try:
        with little_memory():
            recipe = recipe_from_json(data)
    except ValueError as error:
        assert_one_line(error)
        return
    assert isinstance(recipe, Recipe)
    again = json.loads(json.dumps(recipe.to_json()))
    assert value is LEFT_OUT or again == {**again, **data}
    assert recipe_from_json(again) == recipe


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("compile",), "yes"),
        (("data", "path"), 1),
        (("model", "tie_embeddings"), 1),
        (("model", "family"), None),
        (("optim", "lr"), "0.1"),
        (("device",), []),
    ],
)
def test_a_value_of_another_type_in_a_recipe_is_named(path, value):
    with pytest.raises(ValueError, match=f"{path[-1]}.*{re.escape(repr(value))}"):
        recipe_from_json(changed(WHOLE, path, value))


@given(path=PLACES, name=st.text(max_size=4), value=SCALARS)
def test_a_setting_that_a_recipe_has_not_is_named(path, name, value):
    inside = path[:-1]
    if inside == ("model", "others") or (*inside, name) in paths_in(WHOLE):
        return
    try:
        recipe_from_json(changed(WHOLE, (*inside, name), value))
    except ValueError as error:
        assert_one_line(error, repr(name))
    else:
        assert inside == ("model", "residual"), "it was taken"
        assert name in {each.name for kind in RESIDUALS.values() for each in fields(kind)}


@given(data=JSON)
def test_what_is_no_recipe_is_refused(data):
    try:
        recipe_from_json(data)
    except ValueError as error:
        assert_one_line(error)
    else:
        raise AssertionError("it was taken")
