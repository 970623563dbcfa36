"""Recorded histories: their steps, and the log they were written to, played with its revisions and timestamps."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.commands.command import CatalogCommand
from compaction.catalogs.errors import CatalogError, CatalogHistoryError, CatalogValidationError
from compaction.catalogs.log.port import LogEvent, Recovered, Renewal, SnapshotOutcome
from compaction.catalogs.model.descriptors import LOGICAL_BITS, MAXIMUM, MINIMUM
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate
from compaction.catalogs.replay.parsing import command_of

# Histories as a file has them: a step per line, each with what the reference did (docs/design/catalogs.md#histories).

_GZIP: Final = b"\x1f\x8b"
_MOST: Final = 2**31 - 1
Commands = tuple[CatalogCommand, ...] | CatalogValidationError
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
class RecordedTransaction:
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
    transactions: tuple[RecordedTransaction, ...]
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
        with path.open("rb") as head:
            compressed = head.read(2) == _GZIP
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CatalogHistoryError(str(path), number + 1, f"the compressed file is damaged: {error}") from error


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


def _transaction(shown: Mapping[str, Any]) -> RecordedTransaction:
    puts = [(str(key), bytes.fromhex(data)) for key, data in shown["puts"]]
    return RecordedTransaction(
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
        return tuple(command_of(item) for item in shown)
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


# The log that a history was written to, played with its revisions and timestamps (docs/design/catalogs.md#histories).

PRODUCT: Final = "catalog.product"
VERSION: Final = "catalog.version"
SNAPSHOT_VERSION: Final = "catalog.snapshot.version"
UPDATE: Final = "catalog.update."
_PRODUCT_NAME: Final = b"IGNITE"
_ORDER: Final = 0x00808080
"""The reference compares bytes with a sign; this makes numbers ascend there."""
_SHOWN_WHOLE: Final = 64
"""Bytes of a value from which on a history has its hash only."""

Deliver = Callable[[LogEvent], None]


class ReplayLog:
    """Keeps keys and values as the reference does, in memory: a write that fails takes a revision too. Delivers while
    it writes, on the caller's thread.

    Each write takes the timestamp of the write that the history has in its place. The bytes of a value are those of the
    history when they hold the same event: the reference leaves the order of lists in snapshots to chance.
    """

    writer = "a history"

    def __init__(self) -> None:
        self.written: list[RecordedTransaction] = []
        self.events: list[Event] = []
        """What this step put, in order, and as the history has it where that is equal."""
        self.before_append: Callable[[], None] | None = None
        """Runs once, before the next append."""
        self._expected: tuple[RecordedTransaction, ...] = ()
        self._keys: dict[str, tuple[bytes, int, int]] = {}
        self._updates: dict[int, LogEvent] = {}
        self._version = 0
        self._snapshot = 0
        self._active = 0
        self._revision = 0
        self._timestamp = 0
        self._watches: list[ReplayWatch] = []

    def begin(self, expected: tuple[RecordedTransaction, ...]) -> None:
        """The next step, with the writes that the history has for it."""
        self._expected = expected
        self.written = []
        self.events = []

    def keys(self) -> list[list[Any]]:
        """Key, value or its hash, revision and timestamp of the last write; by key."""
        return [
            [key, data.hex() if len(data) < _SHOWN_WHOLE else hashlib.sha256(data).hexdigest(), revision, timestamp]
            for key, (data, revision, timestamp) in sorted(self._keys.items())
        ]

    def time(self) -> None:
        """The timestamps are those of the history."""

    def recover(self) -> Recovered:
        events = tuple(self._updates[version] for version in sorted(self._updates))
        return Recovered(events, self._version, self._revision)

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        if self.before_append is not None:
            run, self.before_append = self.before_append, None
            run()
        if self._version and update.version != self._version + 1:
            self._write(False, [], [])
            return False
        key = f"{UPDATE}{update.version}"
        event, data = self._as_expected(key, update)
        stamp = self._write(True, [(key, data), (VERSION, _number(update.version))], [])
        self._version = update.version
        delay = update.delay << LOGICAL_BITS
        moved = max(stamp, self._active + 1 - delay)
        self._active = moved + delay
        self._deliver(update.version, LogEvent(update, moved, self._revision), event)
        return True

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        """Tokens are unknown to the reference: every one is accepted."""
        old = self._snapshot or 1
        if snapshot.version <= old:
            return SnapshotOutcome.NOT_NEWER
        key = f"{UPDATE}{snapshot.version}"
        event, data = self._as_expected(key, snapshot)
        removes = range(old, snapshot.version)
        puts = [(SNAPSHOT_VERSION, _number(snapshot.version)), (key, data)]
        self._write(True, puts, [f"{UPDATE}{version}" for version in removes])
        self._snapshot = snapshot.version
        for version in removes:
            self._updates.pop(version, None)
        log_event = LogEvent(snapshot, snapshot.activation_time, self._revision)
        self._deliver(snapshot.version, log_event, event)
        return SnapshotOutcome.SAVED

    def sweep(self) -> None:
        """Nothing is left below a snapshot."""

    def claim(self, least: int, *, begins: bool = True) -> int:
        return least

    def watch(self, after: int, deliver: Deliver, failed: Callable[[Exception], None]) -> ReplayWatch:
        """Nothing fails here. The first watch names the product, as the start of the reference does."""
        if PRODUCT not in self._keys:
            self._write(True, [(PRODUCT, _PRODUCT_NAME)], [])
        watch = ReplayWatch(self._watches, deliver)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        self._watches.clear()

    def _write(self, succeeded: bool, puts: list[tuple[str, bytes]], removes: list[str]) -> int:
        self._revision += 1
        at = len(self.written)
        given = self._expected[at].timestamp if at < len(self._expected) else 0
        # A history whose time stands still or steps back is wrong: ours goes on, and differs.
        self._timestamp = max(given, self._timestamp + 1)
        self.written.append(
            RecordedTransaction(succeeded, self._revision, self._timestamp, tuple(sorted(puts)), tuple(removes))
        )
        for key in removes:
            self._keys.pop(key, None)
        for key, data in puts:
            self._keys[key] = (data, self._revision, self._timestamp)
        return self._timestamp

    def _as_expected(self, key: str, event: Event) -> tuple[Event, bytes]:
        at = len(self.written)
        puts: Iterable[tuple[str, bytes]] = self._expected[at].puts if at < len(self._expected) else ()
        for found, data in puts:
            if found == key:
                try:
                    theirs = decode(data, key)
                except CatalogError:
                    break
                if in_order(theirs) == in_order(event):
                    return theirs, data
        return event, encode(event)

    def _deliver(self, version: int, event: LogEvent, shown: Event) -> None:
        self._updates[version] = event
        self.events.append(shown)
        for watch in list(self._watches):
            watch.deliver(event)


class ReplayWatch:
    """Of one manager."""

    def __init__(self, watches: list[ReplayWatch], deliver: Deliver) -> None:
        self._watches = watches
        self.deliver = deliver

    def close(self) -> None:
        if self in self._watches:
            self._watches.remove(self)


def in_order(event: Event) -> Event:
    """An event whose lists are by ascending id, as ours are."""
    if not isinstance(event, Snapshot):
        return event
    schemas = [
        replace(
            schema,
            tables=tuple(sorted(schema.tables, key=lambda table: table.id)),
            indexes=tuple(sorted(schema.indexes, key=lambda index: index.id)),
            views=tuple(sorted(schema.views, key=lambda view: view.id)),
        )
        for schema in sorted(event.schemas, key=lambda schema: schema.schema.id)
    ]
    zones = sorted(event.zones, key=lambda zone: zone.id)
    return replace(event, zones=tuple(zones), schemas=tuple(schemas))


def _number(version: int) -> bytes:
    return (version ^ _ORDER).to_bytes(4, "big")
