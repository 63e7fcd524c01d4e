"""Dataclasses of plain values from JSON: what does not fit is a ValueError of one line."""

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Built = TypeVar("Built")
LONGEST = 80  # characters of a value that an error shows


def build(kind: type[Built], data: Any, what: str) -> Built:
    """The dataclass with these settings; `what` names it in errors.

    Raises:
        ValueError: no object, a setting that the class has not, a value of another type, or what
            the class itself refuses.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object of settings, got {shown(data)}")
    known = [each.name for each in fields(cast(Any, kind))]
    for name in data:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(f"{what} has no setting {shown(name)}; it has: {listed}")
    misfit = _misfit(kind, data)
    try:
        built = kind(**data)  # its own words come first: they know the range as well
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{what}: {misfit or error}") from error
    if misfit:
        raise ValueError(f"{what}: {misfit}")
    return built


def shown(value: Any) -> str:
    """As an error shows it: in one line, and not all of a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def readable(name: str) -> str:
    """A name as it is, unless it holds what would break a line or steer a terminal."""
    return name if name.isprintable() else repr(name)


def _misfit(kind: Any, data: dict[str, Any]) -> str:
    """The first value of another type than its field has; nothing where all fit."""
    for name, hint in _hints(kind).items():
        if name in data and not _fits(data[name], hint):
            return f"{name} must be {_words(hint)}, got {shown(data[name])}"
    return ""


def _hints(kind: Any) -> dict[str, Any]:
    """Of the fields; none where a class of somebody else's has names that are not here."""
    try:
        hints = get_type_hints(kind)
    except NameError:
        return {}
    return {each.name: hints[each.name] for each in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; one that JSON does not know is left to its class."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    if origin is dict:
        of = get_args(hint)
        return isinstance(value, dict) and all(
            _fits(key, of[0]) and _fits(each, of[1]) for key, each in value.items()
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    is_known = hint in (str, bool, NoneType) or (isinstance(hint, type) and is_dataclass(hint))
    return isinstance(value, hint) if is_known else True


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is dict:
        return "an object of numbers or texts"
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    return names.get(hint, "null" if hint is NoneType else str(hint))
