"""Descriptors with other values in some fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
_new: Final = object.__new__


class _Shape(NamedTuple):
    """How to read all fields of a class, where each is, and how to set each."""

    get: Callable[[Any], tuple[Any, ...]]
    places: dict[str, int]
    setters: tuple[Callable[[Any, Any], None], ...]


_SHAPES: Final[dict[type, _Shape]] = {}
"""Filled as classes come."""


def _shape(kind: type) -> _Shape:
    names = [one.name for one in fields(kind)]
    found = _Shape(
        attrgetter(*names),
        {name: at for at, name in enumerate(names)},
        # The constructor of a frozen class asks `object.__setattr__`, which takes three times as long as its slots do.
        tuple(vars(kind)[name].__set__ for name in names),
    )
    _SHAPES[kind] = found
    return found


def made(kind: type[T], values: Iterable[Any]) -> T:
    """An instance of a frozen class with slots, of all its values in order; `__post_init__` does not run."""
    shape = _SHAPES.get(kind) or _shape(kind)
    one = _new(kind)
    for put, value in zip(shape.setters, values, strict=True):
        put(one, value)
    return one


def changed(one: T, **changes: object) -> T:
    """As `dataclasses.replace`, for frozen classes with slots whose checks hold for the changes: `__post_init__` does
    not run. A fraction of its time: each version of a catalog takes several. KeyError for a field that does not exist.
    """
    kind = type(one)
    shape = _SHAPES.get(kind) or _shape(kind)
    values = list(shape.get(one))
    for name, value in changes.items():
        values[shape.places[name]] = value
    copy = _new(kind)
    for put, value in zip(shape.setters, values, strict=True):
        put(copy, value)
    return copy
