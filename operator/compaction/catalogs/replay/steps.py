"""Histories as a file has them: a step per line, each with what the reference did
(docs/design/catalogs.md#histories).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from compaction.catalogs.commands.command import Command
from compaction.catalogs.errors import CatalogHistoryError, CatalogValidationError
from compaction.catalogs.model.hybrid import MAXIMUM, MINIMUM
from compaction.catalogs.replay.parsing import command_of

_GZIP: Final = b"\x1f\x8b"
_MOST: Final = 2**31 - 1
Commands = tuple[Command, ...] | CatalogValidationError
"""A batch; or why the parameters of one of its commands are refused."""


@dataclass(frozen=True, slots=True)
class Configure:
    """The first step: version 1, and the delay of updates in milliseconds."""

    delay: int


@dataclass(frozen=True, slots=True)
class Execute:
    commands: Commands


@dataclass(frozen=True, slots=True)
class Interleave:
    """Another manager runs `first` between the read and the write of `commands`."""

    first: Commands
    commands: Commands


@dataclass(frozen=True, slots=True)
class Compact:
    version: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A new manager over the same log."""


@dataclass(frozen=True, slots=True)
class ActiveAt:
    at: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Time passes; nothing else happens."""


@dataclass(frozen=True, slots=True)
class ListVersions:
    """All retained versions with activation time and fingerprint."""


@dataclass(frozen=True, slots=True)
class ListKeys:
    """All keys of the log."""


Operation = Configure | Execute | Interleave | Compact | Restart | ActiveAt | Advance | ListVersions | ListKeys


@dataclass(frozen=True, slots=True)
class Transaction:
    """A write of the log. `timestamp`: hybrid."""

    succeeded: bool
    revision: int
    timestamp: int
    puts: tuple[tuple[str, bytes], ...]
    removes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """`line` of the file. `expected`: all other fields of the line, as they are."""

    line: int
    name: str
    operation: Operation
    transactions: tuple[Transaction, ...]
    expected: Mapping[str, Any]


def steps(path: Path) -> Iterator[Step]:
    """Each step of a history, plain or compressed with gzip.

    CatalogHistoryError, which names file and line, for what is none; OSError when the file cannot be read.
    """
    number = 0
    for number, text in _lines(path):
        try:
            step = _step(number, json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise CatalogHistoryError(str(path), number, f"{type(error).__name__}: {error}") from error
        if isinstance(step.operation, Configure) != (number == 1):
            raise CatalogHistoryError(str(path), number, "the first line, and no other one, is the operation config")
        yield step
    if not number:
        raise CatalogHistoryError(str(path), 1, "the file is empty")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CatalogHistoryError(str(path), number + 1, f"the compressed file is damaged: {error}") from error


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return gzip.open(path, "rb") if compressed else path.open("rb")


def _step(line: int, record: Any) -> Step:
    given = record["in"]
    name = given["op"]
    if name not in _OPERATIONS:
        raise ValueError(f"unknown operation {str(name)[:80]!a}")
    operation = _OPERATIONS[name](given)
    expected = {key: value for key, value in record.items() if key != "in"}
    for key in ("earliest", "latest"):
        _integer(expected[key], 0, _MOST)
    transactions = tuple(_transaction(shown) for shown in expected.pop("txns"))
    return Step(line, name, operation, transactions, expected)


def _transaction(shown: Mapping[str, Any]) -> Transaction:
    puts = [(str(key), bytes.fromhex(data)) for key, data in shown["puts"]]
    return Transaction(
        bool(shown["succeeded"]),
        _integer(shown["revision"], 0, MAXIMUM),
        _integer(shown["timestamp"], MINIMUM, MAXIMUM),
        tuple(sorted(puts)),
        tuple(str(key) for key in shown["removes"]),
    )


def _integer(value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{str(value)[:80]} is no integer from {least} to {most}")
    return value


def _commands(shown: list[Any]) -> Commands:
    try:
        return tuple(command_of(one) for one in shown)
    except CatalogValidationError as error:
        return error


_OPERATIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], Operation]]] = {
    "config": lambda given: Configure(_integer(given["delayMs"], 0, _MOST)),
    "exec": lambda given: Execute(_commands(given["cmds"])),
    "interleave": lambda given: Interleave(_commands(given["first"]), _commands(given["cmds"])),
    "compact": lambda given: Compact(_integer(given["version"], -_MOST, _MOST)),
    "restart": lambda _: Restart(),
    "activeAt": lambda given: ActiveAt(_integer(given["ts"], -MAXIMUM, MAXIMUM)),
    "advance": lambda _: Advance(),
    "versions": lambda _: ListVersions(),
    "keys": lambda _: ListKeys(),
}
