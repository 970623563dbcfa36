"""What a fuzz target is, and what is asked of every error: it names the object, is short, and is safe to print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from compaction.api.text.printing import printable
from compaction.errors import CompactionError

LONGEST_ERROR = 4096
"""Characters of an error about hostile input, path included: hostile content is quoted in part, never as a whole."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `run` takes the bytes and an empty directory of its own; it raises when a property does not hold.

    `seeds` are valid inputs, made by the encoders; `tokens` are words of the format that mutations insert.
    """

    name: str
    run: Callable[[bytes, Path], None]
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...] = ()


def check_error(error: BaseException, *, names: str) -> None:
    """AssertionError unless the error's text names the object, is bounded, and holds nothing a terminal obeys."""
    text = str(error)
    assert names in text, f"the error does not name {names}: {text[:300]!r}"
    assert len(text) <= LONGEST_ERROR, f"an error of {len(text)} characters: {text[:300]!r}"
    assert all(printable(line) == line for line in text.split("\n")), f"the error writes on a terminal: {text[:300]!r}"


@contextmanager
def refusing(names: str, *errors: type[Exception]) -> Iterator[None]:
    """The block may end in an error of ours (or in one of `errors`) that names the object; anything else escapes."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (CompactionError, *errors)):
            raise
        check_error(error, names=names)


# Structured mutation: valid bytes, damaged in the ways that parsers get wrong.
#
# The same mutations for both engines: hypothesis draws them (and shrinks them), atheris adds its own by coverage.

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
"""Values at which a length, a count or an offset overflows something."""

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, "", "x" * 5000, "\x1b[2J\n",
    "../../x", "\ud800", "self", "-1", [], {}, [None], [0] * 300, {"x": {}}, {"": [[]]},
)  # fmt: skip
"""What may stand in place of any value of a JSON document."""

Step = Callable[[bytes], bytes]


@st.composite
def _steps(draw: st.DrawFn, target: Target) -> Step:
    """One damage, at a place drawn as a fraction of whatever the bytes are by then."""
    place = draw(st.integers(0, 1000))
    kind = draw(st.sampled_from(("value", "byte", "number", "cut", "delete", "insert", "repeat", "splice", "token")))
    if kind == "value":
        value = draw(st.sampled_from(VALUES))
        return lambda data: _replace(data, place, value)
    if kind == "byte":
        value = draw(st.integers(0, 255))
        return lambda data: _put(data, place, bytes([value]))
    if kind == "number":
        width, number = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(EXTREMES))
        return lambda data: _put(data, place, (number % 256**width).to_bytes(width, "big"))
    if kind == "cut":
        return lambda data: data[: _at(data, place)]
    if kind == "delete":
        size = draw(st.integers(1, 40))
        return lambda data: data[: _at(data, place)] + data[_at(data, place) + size :]
    if kind == "repeat":
        size, times = draw(st.integers(1, 40)), draw(st.integers(2, 60))
        return lambda data: _insert(data, place, data[_at(data, place) : _at(data, place) + size] * times)
    if kind == "splice":
        other, start = draw(st.sampled_from(target.seeds)), draw(st.integers(0, 1000))
        return lambda data: data[: _at(data, place)] + other[_at(other, start) :]
    words = target.tokens if kind == "token" else ()
    word = draw(st.sampled_from(words)) if words else draw(st.binary(min_size=1, max_size=12))
    return lambda data: _insert(data, place, word)


@st.composite
def mutated(draw: st.DrawFn, target: Target) -> bytes:
    """A seed of the target after up to six damages; now and then arbitrary bytes."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(target.seeds))
    for step in draw(st.lists(_steps(target), min_size=1, max_size=6)):
        data = step(data)
    return data


def _replace(data: bytes, place: int, value: Any) -> bytes:
    """A JSON document with one of its values replaced; other bytes stay as they are."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(document))
    if places:
        holder, key = places[(len(places) - 1) * place // 1000]
        holder[key] = value
    try:
        return json.dumps(document).encode()
    except ValueError:
        return data


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or position) in a document."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _places(node[key])


def _at(data: bytes, place: int) -> int:
    return len(data) * place // 1000


def _put(data: bytes, place: int, value: bytes) -> bytes:
    at = _at(data, place)
    return data[:at] + value + data[at + len(value) :]


def _insert(data: bytes, place: int, value: bytes) -> bytes:
    at = _at(data, place)
    return data[:at] + value + data[at:]
