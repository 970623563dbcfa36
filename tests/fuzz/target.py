"""What a fuzz target is, and what is asked of every error: it names the object, is short, and is safe to print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
