"""The port of a key-value store, and arguments that no store can hold (docs/design/staging-areas.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

from compaction.errors import shown_bytes
from compaction.staging.errors import KeyValueArgumentError

# Requirements of staging areas on a key-value store: values under two keys, compare and swap, and scans in order.
#
# There are no transactions over several rows, and a scan is not a snapshot: each of its pages is read by itself
# (docs/design/staging.md#key-value-store).

TABLE: Final = "kv"
"""The table of a key-value store that names none."""
MAX_VALUE_BYTES: Final = 64 << 20
MAX_KEY_BYTES: Final = 2600
"""Of a partition and a key together: PostgreSQL indexes at most 2,704 bytes of a row, its own headers included."""

Pair: TypeAlias = tuple[bytes, bytes]
"""A key and its value."""


class Presence(Enum):
    """The state that `set_if` expects of a key when it expects no value."""

    ABSENT = auto()
    PRESENT = auto()


Expected: TypeAlias = Presence | bytes
"""A value stands for exactly these bytes: those that were read, never those of a message that was encoded again."""


class KeyValueStore(Protocol):
    """Rows of partitions. May be used by many threads.

    A partition is text, a key and a value are bytes; an empty partition or key is refused with KeyValueArgumentError,
    as is a row to write that exceeds `MAX_KEY_BYTES` or `MAX_VALUE_BYTES`. Every method raises DatabaseError when the
    store cannot be used.
    """

    @property
    def name(self) -> str:
        """For messages; no password is in it."""
        ...

    def get(self, partition: str, key: bytes) -> bytes | None:
        """The value, None when the key is not there."""
        ...

    def get_many(self, partition: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those of the keys that are there, read at one moment each thousand or so."""
        ...

    def set(self, partition: str, key: bytes, value: bytes) -> None:
        """Write a row, whatever was there."""
        ...

    def set_if(self, partition: str, key: bytes, value: bytes, expected: Expected) -> None:
        """Write a row if the key is as expected at this moment.

        An answer that was lost is no success: when the row may have been written by an earlier try of this very call,
        it is read, and a row with exactly `value` counts as written.

        Raises:
            PredicateFailedError: it is not as expected; nothing was written.
        """
        ...

    def delete(self, partition: str, key: bytes) -> None:
        """Delete a row; one that is not there counts as deleted."""
        ...

    def set_many(self, partition: str, rows: Sequence[Pair]) -> None:
        """Write rows of one partition, later ones over earlier ones of the same key. All of them, or none."""
        ...

    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """Delete rows of one partition. All of them, or none."""
        ...

    def scan(
        self, partition: str, start: bytes = b"", stop: bytes | None = None, *, page: int = 1000
    ) -> Iterator[list[Pair]]:
        """Rows with start <= key < stop (None: to the end) in the order of the keys' bytes, in pages with at least one.

        `page`: rows of the first page; each following one has twice as many, up to a limit. Rows that are written or
        deleted meanwhile may be seen or not.
        """
        ...

    def close(self) -> None:
        """Close all connections that are not in use."""
        ...


# Arguments that a key-value store cannot hold, refused before a database sees them; errors name the partition and the
# key.


def partition_bytes(partition: str) -> bytes:
    """The bytes of a partition's name: UTF-8, apart from the bytes that `surrogateescape` stands for."""
    if not isinstance(partition, str) or not partition:
        raise KeyValueArgumentError(f"partition {partition!a}: its name is empty or not text; pass the name as a str")
    try:
        return partition.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise KeyValueArgumentError(
            f"partition {partition[:80]!a}: its name is not Unicode text; decode it with surrogateescape"
        ) from None


def check_key(partition: str, key: bytes) -> None:
    """Raises KeyValueArgumentError for a key that no row can have."""
    if not isinstance(key, bytes) or not key:
        raise KeyValueArgumentError(f"{partition}: key {key!a}: it is empty or not bytes; pass at least one byte")


def check_row(partition: str, name: bytes, key: bytes, value: bytes) -> None:
    """Raises KeyValueArgumentError for a row that cannot be written. `name`: the partition's bytes."""
    check_key(partition, key)
    if len(name) + len(key) > MAX_KEY_BYTES:
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}...: its {len(key)} bytes and the {len(name)} of the partition's name "
            f"are more than the {MAX_KEY_BYTES} that a database can index; use a shorter key"
        )
    if not isinstance(value, bytes):
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}: its value is a {type(value).__name__}; pass bytes, or delete the row"
        )
    if len(value) > MAX_VALUE_BYTES:
        raise KeyValueArgumentError(
            f"{partition}: key {shown_bytes(key)}: its value of {len(value)} bytes exceeds {MAX_VALUE_BYTES}; "
            "store it as an object"
        )
