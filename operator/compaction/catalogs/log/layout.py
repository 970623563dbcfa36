"""Keys, values, numbers and transactions of an update log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.errors import (
    CatalogValueError,
    CorruptCatalogLogError,
    CorruptCatalogValueError,
    UnreadableVersionError,
    UnsupportedCatalogValueError,
)
from compaction.catalogs.log.etcd.wire import (
    Absent,
    Compare,
    DeleteRange,
    EtcdPage,
    Get,
    KeyValue,
    Put,
    Relation,
    Transaction,
)
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.model.descriptors import LOGICAL_BITS, MINIMUM, later
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate

# Keys and values of an update log (docs/design/catalogs.md#keys-and-values-of-the-log).

PRODUCT: Final = b"compaction.dev/catalog/2"
"""Whose log a prefix holds, and in which layout."""
FIRST_VERSION: Final = 1
LAST_VERSION: Final = 2**31 - 1
DIGITS: Final = 10
_NUMBER: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">BQ16sB")
_LAYOUT: Final = 2
STAMP_BYTES: Final = 16
WRITER_BYTES: Final = 64
"""Most of the name of a writer."""


def number(value: int) -> bytes:
    """Eight bytes, highest first: as bytes they compare as the numbers do."""
    return _NUMBER.pack(value)


def last(version: int, activation: int) -> bytes:
    """The value of `Keys.version`. Compared as bytes, the version decides first."""
    return number(version) + number(activation)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one log. `prefix` is the catalog's own part of etcd and ends without a slash."""

    prefix: str

    def _key(self, name: str) -> bytes:
        return f"{self.prefix}/catalog.{name}".encode()

    @property
    def product(self) -> bytes:
        return self._key("product")

    @property
    def version(self) -> bytes:
        """The last version, 0 in an empty log, and its activation time: two numbers (`last`)."""
        return self._key("version")

    @property
    def snapshot(self) -> bytes:
        """The version of the snapshot, 1 as long as there is none: nothing below it belongs to the log."""
        return self._key("snapshot.version")

    @property
    def token(self) -> bytes:
        """The largest fencing token that was claimed."""
        return self._key("token")

    def update(self, version: int) -> bytes:
        """Return the key of a version's update or snapshot."""
        return self._key(f"update.{version:0{DIGITS}d}")

    @property
    def updates(self) -> tuple[bytes, bytes]:
        """All updates: first key, and the end of the range."""
        return self._key("update."), self._key("update/")

    def version_of(self, key: bytes) -> int:
        """Of a key that `update` made. Raises CorruptCatalogLogError for another one."""
        digits = key[len(self.updates[0]) :]
        if len(digits) != DIGITS or not digits.isdigit():
            raise CorruptCatalogLogError(shown(key), "a key that no version has")
        return int(digits)

    def numbers(self, key: bytes, value: bytes, count: int = 1) -> tuple[int, ...]:
        """Of a key that holds numbers. Raises CorruptCatalogLogError for a value of another length."""
        if len(value) != count * _NUMBER.size:
            raise CorruptCatalogLogError(shown(key), f"{len(value)} bytes instead of {count * _NUMBER.size}")
        return tuple(found for (found,) in _NUMBER.iter_unpack(value))


def shown(key: bytes) -> str:
    """A key in a message."""
    return key.decode("ascii", "backslashreplace")


def short_name(name: str) -> str:
    """The name of a writer, cut to what a value holds."""
    return name.encode("utf-8", "replace")[:WRITER_BYTES].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Stored:
    """A value of the log. `stamp`: of its writer, different for each write, so that a writer recognizes its own.
    `writer`: its name, for people.
    """

    event: Event
    activation: int
    stamp: bytes
    writer: str = ""

    @property
    def timestamp(self) -> int:
        """As in `LogEvent`."""
        if isinstance(self.event, Snapshot):
            return self.activation
        return self.activation - (self.event.delay << LOGICAL_BITS)

    def seen(self, revision: int) -> LogEvent:
        """As the port delivers it."""
        return LogEvent(self.event, self.timestamp, revision, self.writer)


def encoded(stored: Stored) -> bytes:
    """The bytes of a value. Raises CatalogValueError when the codec cannot hold the event."""
    name = stored.writer.encode("utf-8")
    return _HEAD.pack(_LAYOUT, stored.activation, stored.stamp, len(name)) + name + encode(stored.event)


def pack(keys: Keys, stored: Stored) -> bytes:
    """As `encoded`, read back before anything else can: a value that no reader takes stops every process that follows
    the log, for good. Raises CatalogValueError also when the bytes say anything else than `stored`.
    """
    version, value = stored.event.version, encoded(stored)
    try:
        read = unpack(keys, keys.update(version), value)
    except CorruptCatalogLogError as error:
        raise CatalogValueError(f"no reader takes version {version}: {error.reason}") from error
    if read != stored:
        raise CatalogValueError(f"the bytes of version {version} read as another value")
    return value


def unpack(keys: Keys, key: bytes, value: bytes) -> Stored:
    """The value of an update's key. Raises UnreadableVersionError, which names the key."""
    if len(value) < _HEAD.size or value[0] != _LAYOUT:
        raise UnreadableVersionError(shown(key), f"no value of this log ({len(value)} bytes)")
    _, activation, stamp, length = _HEAD.unpack_from(value)
    start = _HEAD.size + length
    try:
        writer = value[_HEAD.size : start].decode("utf-8")
        event = decode(value[start:], shown(key))
    except UnicodeDecodeError as error:
        raise UnreadableVersionError(shown(key), "the name of its writer is no text") from error
    except (CorruptCatalogValueError, UnsupportedCatalogValueError) as error:
        raise UnreadableVersionError(shown(key), f"byte {error.offset} of the value: {error.reason}") from error
    if event.version != keys.version_of(key):
        raise UnreadableVersionError(shown(key), f"holds version {event.version}")
    stored = Stored(event, activation, stamp, writer)
    if stored.timestamp < MINIMUM or (isinstance(event, Snapshot) and event.activation_time != activation):
        raise UnreadableVersionError(shown(key), f"the activation time {activation} contradicts the value")
    return stored


def head_of(value: bytes) -> int | None:
    """The activation time of a value whose event may be damaged; None where even that does not stand there."""
    if len(value) < _HEAD.size or value[0] != _LAYOUT:
        return None
    activation: int = _HEAD.unpack_from(value)[1]
    return activation


def activation_of(update: VersionedUpdate, timestamp: int) -> int:
    """Return the time from which an update is active. Raises CatalogValueError for a version or a time that no log can
    hold.
    """
    if not FIRST_VERSION <= update.version <= LAST_VERSION:
        raise CatalogValueError(f"{update.version} is no version of an update log")
    if update.delay < 0:
        raise CatalogValueError(f"version {update.version} has a delay of {update.delay} ms")
    try:
        return later(timestamp, update.delay)
    except ValueError as error:
        raise CatalogValueError(str(error)) from error


# The numbers of an update log at one revision (docs/design/catalogs.md#keys-and-values-of-the-log).


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The state that the log itself records. `asked`: the update or snapshot of the version that was asked for."""

    version: int
    activation: int
    snapshot: int
    token: int
    asked: Stored | None
    changed: int
    """The revision of the last append or snapshot."""
    snapshot_changed: int
    """The revision of the last snapshot."""
    revision: int
    """The store's."""


def surveyed(keys: Keys, found: Sequence[EtcdPage]) -> LogSurvey | None:
    """Read what `requests.survey` found; None when the prefix holds no log.

    Raises CorruptCatalogLogError for the log of another product, or a part of a log.
    """
    product, version, snapshot, token, asked = (page.pairs[0] if page.pairs else None for page in found)
    if product is None:
        for item in (version, snapshot, token):
            if item is not None:
                raise CorruptCatalogLogError(shown(item.key), f"exists, and {shown(keys.product)} does not")
        return None
    if product.value != PRODUCT:
        raise CorruptCatalogLogError(shown(keys.product), f"the log of another product: {product.value[:40]!a}")
    last, cut = _needed(version, keys.version), _needed(snapshot, keys.snapshot)
    number, active = keys.numbers(keys.version, last.value, 2)
    return LogSurvey(
        version=number,
        activation=active,
        snapshot=keys.numbers(keys.snapshot, cut.value)[0],
        token=keys.numbers(keys.token, _needed(token, keys.token).value)[0],
        asked=None if asked is None else unpack(keys, asked.key, asked.value),
        changed=max(last.revision, cut.revision),
        snapshot_changed=cut.revision,
        revision=found[0].revision,
    )


def _needed(found: KeyValue | None, key: bytes) -> KeyValue:
    if found is None:
        raise CorruptCatalogLogError(shown(key), "is missing")
    return found


# Every transaction of an update log (docs/design/catalogs.md#transactions-of-the-log).
#
# Each may run twice without harm: after a lost answer the client sends it again. None reads where it fails; every
# number only grows, so a reading afterwards shows as much and most requests stay small.

AT_ONCE: Final = 1_000
"""Versions that one range delete takes: etcd answers nothing else meanwhile."""


def first_keys(keys: Keys) -> Transaction:
    """Make a prefix a log, unless it holds anything of one."""
    return Transaction(
        tuple(Absent(key) for key in (keys.product, keys.version, keys.snapshot, keys.token)),
        (
            Put(keys.product, PRODUCT),
            Put(keys.version, last(0, 0)),
            Put(keys.snapshot, number(FIRST_VERSION)),
            Put(keys.token, number(0)),
        ),
    )


def survey(keys: Keys, version: int = 0) -> Transaction:
    """Read the numbers of the log in one revision, and the key of a version."""
    wanted = (keys.product, keys.version, keys.snapshot, keys.token, keys.update(version))
    return Transaction((), tuple(map(Get, wanted)))


def append_transaction(keys: Keys, version: int, activation: int, value: bytes) -> Transaction:
    """Write a version after the one before it, later than that one: the last version's two numbers are between
    (version - 1, any time) and (version - 1, activation).
    """
    return Transaction(
        (
            Compare(keys.version, Relation.GREATER, number(version - 1)),
            Compare(keys.version, Relation.LESS, last(version - 1, activation)),
        ),
        (Put(keys.update(version), value), Put(keys.version, last(version, activation))),
    )


def snapshot_transaction(keys: Keys, version: int, token: int, value: bytes) -> Transaction:
    """Replace what is up to a version by its snapshot, and delete the versions right below it. Older ones are garbage
    from then on.
    """
    return Transaction(
        (
            Compare(keys.snapshot, Relation.LESS, number(version)),
            Compare(keys.token, Relation.LESS, number(token + 1)),
            Compare(keys.version, Relation.GREATER, number(version)),
        ),
        (
            Put(keys.snapshot, number(version)),
            Put(keys.token, number(token)),
            Put(keys.update(version), value),
            # The end of the range excludes the version itself: etcd refuses to put and delete a key at once.
            DeleteRange(keys.update(max(0, version - AT_ONCE)), keys.update(version)),
        ),
    )


def step_over_transaction(keys: Keys, version: int, unreadable: bytes, value: bytes) -> Transaction:
    """Replace the value of a version, unless it is another one than was read."""
    return Transaction(
        (Compare(keys.update(version), Relation.EQUAL, unreadable),), (Put(keys.update(version), value),)
    )


def claim_transaction(keys: Keys, largest: int, token: int) -> Transaction:
    """Make `token` the largest one, unless `largest` is not that any longer: so two claims never have the same."""
    return Transaction(
        (Compare(keys.token, Relation.EQUAL, number(largest)),),
        (Put(keys.token, number(token)),),
    )


def oldest_garbage(keys: Keys, version: int) -> Get:
    """The first key below a snapshot's version."""
    return Get(keys.updates[0], keys.update(version), limit=1, keys_only=True)


def sweep_transaction(keys: Keys, start: int, end: int) -> Transaction:
    """Delete versions from `start` up to and without `end`, which the snapshot has replaced."""
    return Transaction(
        (Compare(keys.snapshot, Relation.GREATER, number(end - 1)),),
        (DeleteRange(keys.update(start), keys.update(end)),),
    )
