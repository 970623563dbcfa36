"""Staging tokens in a key-value store: staged changes of single objects, of many, and whole tokens in order.

docs/design/staging.md#staged-changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from compaction.staging.changes import TOMBSTONE
from compaction.staging.format.columns import RecordColumns
from compaction.staging.kv.port import Expected, KeyValueStore, Presence
from compaction.staging.staged.rows import decode_row, decode_rows, encode_row, encode_rows


def new_token(repository: str, branch: str) -> str:
    """The name of a token that never was."""
    return f"{repository}-{branch}:{uuid4()}"


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest key above all keys with this prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A staged change. `value`: framed, or b"" for a tombstone. `raw`: the row as it was read, for `set_if`."""

    value: bytes
    raw: bytes


class StagedTokens:
    """The staged changes of tokens. A value is framed (docs/design/staging.md#values), b"" stands for a tombstone.

    Every method raises DatabaseError when the store cannot be used, and those that read rows CorruptMessageError, which
    names token and key. May be used by many threads.
    """

    def __init__(self, kv: KeyValueStore) -> None:
        self.kv = kv

    def read(self, token: str, key: bytes) -> StagedRow | None:
        """The change of one object with its row, None when there is none."""
        raw = self.kv.get(token, key)
        return None if raw is None else StagedRow(decode_row(token, key, raw), raw)

    def get(self, token: str, key: bytes) -> bytes | None:
        """The change of one object: framed value, b"" for a tombstone, None when there is none."""
        row = self.read(token, key)
        return None if row is None else row.value

    def get_many(self, token: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The changes of those of the objects that have one, as `get` returns them."""
        return {key: decode_row(token, key, raw) for key, raw in self.kv.get_many(token, keys).items()}

    def set(self, token: str, key: bytes, value: bytes) -> None:
        """Stage a change, whatever was there. KeyValueArgumentError for a value without an identity."""
        self.kv.set(token, key, encode_row(key, value))

    def set_tombstone(self, token: str, key: bytes) -> None:
        """Stage a deletion."""
        self.set(token, key, TOMBSTONE)

    def set_if(self, token: str, key: bytes, value: bytes, expected: Expected) -> None:
        """Stage a change if the row is as expected: absent, present, or `StagedRow.raw`. PredicateFailedError when it
        is not.
        """
        self.kv.set_if(token, key, encode_row(key, value), expected)

    def update(self, token: str, key: bytes, change: Callable[[bytes | None], bytes | None]) -> None:
        """Stage what `change` makes of the change there is; None leaves it. PredicateFailedError when another writer
        came between.
        """
        row = self.read(token, key)
        value = change(None if row is None else row.value)
        if value is not None:
            self.set_if(token, key, value, Presence.ABSENT if row is None else row.raw)

    def set_many(self, token: str, changes: RecordColumns) -> None:
        """Stage many changes: all of them, or none."""
        self.kv.set_many(token, encode_rows(changes))

    def has_rows(self, token: str) -> bool:
        """Whether anything is staged in a token."""
        return next(iter(self.kv.scan(token, page=1)), None) is not None

    def remove(self, token: str, key: bytes) -> None:
        """Delete the row of an object: below it counts what older tokens say."""
        self.kv.delete(token, key)

    def changes(
        self, token: str, start: bytes = b"", stop: bytes | None = None, *, page: int = 1000
    ) -> Iterator[RecordColumns]:
        """The changes with start <= key < stop in the order of their keys, page by page; no snapshot. `page`: rows of
        the first one.
        """
        for rows in self.kv.scan(token, start, stop, page=page):
            yield decode_rows(token, rows)

    def drop(self, token: str, *, pause: Callable[[int], object] = lambda _: None) -> int:
        """Delete all rows of a token, page by page, and return how many; may be interrupted and repeated. `pause` is
        called with the rows of each page, to go slowly.
        """
        return self.drop_prefix(token, b"", pause=pause)

    def drop_prefix(self, token: str, prefix: bytes, *, pause: Callable[[int], object] = lambda _: None) -> int:
        """Delete the rows whose key has a prefix, as `drop` does."""
        dropped = 0
        while True:
            before = dropped
            for rows in self.kv.scan(token, prefix, after_prefix(prefix)):
                self.kv.delete_many(token, [key for key, _ in rows])
                dropped += len(rows)
                pause(len(rows))
            # A writer that is slow may have come in behind the scan.
            if dropped == before:
                return dropped
