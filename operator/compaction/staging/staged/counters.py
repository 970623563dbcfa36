"""Durable counters of staging tokens, kept by the path that writes (docs/design/staging.md#counters).

A writer adds up in memory and owns the rows that it writes: counting never waits for the store, and never fails with
it. Counters are hints: they say when a branch is worth compacting, content never depends on them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from uuid import uuid4

from compaction.errors import shown_bytes
from compaction.staging.errors import PredicateFailedError
from compaction.staging.format.columns import tombstones
from compaction.staging.format.messages import StagingMessage, count_field
from compaction.staging.kv.port import KeyValueStore, Pair, Presence, check_row, partition_bytes
from compaction.staging.staged.rows import StagedTokens
from compaction.storage.errors import DatabaseError

PARTITION: Final = "staging-counters"
FLUSH_WRITES: Final = 256
FLUSH_SECONDS: Final = 1.0
COUNTING: Final = "staging counters"
"""The name of the thread that writes them."""
PRIMED: Final = "primed"
"""The id of the row that a scan of the token wrote."""
_REMEMBERED: Final = 1024
"""Tokens of which a writer keeps the totals in memory."""
_EACH: Final = 16
"""For more tokens than these one scan over all rows between the first and the last costs less than one for each."""


@dataclass(frozen=True)
class Counts(StagingMessage):
    """The counts of writes to a token. `nbytes`: of keys and values."""

    NAME: ClassVar[str] = "staging counters"
    writes: int = count_field(1)
    tombstones: int = count_field(2)
    nbytes: int = count_field(3)

    def __add__(self, other: Counts) -> Counts:
        """The sum."""
        return Counts(self.writes + other.writes, self.tombstones + other.tombstones, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class SensorNudge:
    """The call of a writer when one of its tokens has another `tombstones` of them: `call` is given the token and what
    this writer counted in it. It is called by the thread that writes counters, after they are written, so a slow one
    delays counters and never a write.
    """

    tombstones: int
    call: Callable[[str, Counts], None]

    def __post_init__(self) -> None:
        if self.tombstones < 1:
            raise ValueError("a nudge after fewer tombstones than 1; give a threshold from 1 on")


class TokenCounters:
    """The counters of one writer, and what all writers counted. May be used by many threads; close it at the end.

    `nudge`: tells a sensor that is far from its next scan.
    """

    def __init__(
        self,
        kv: KeyValueStore,
        *,
        flush_writes: int = FLUSH_WRITES,
        flush_seconds: float = FLUSH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        nudge: SensorNudge | None = None,
    ) -> None:
        self._kv = kv
        self._nudge = nudge
        self._nudged: dict[str, int] = {}
        self._flush_writes = flush_writes
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._rows: dict[str, bytes] = {}
        self._totals: dict[str, Counts] = {}
        self._dirty: set[str] = set()
        self._pending = 0
        self._since = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def count(self, token: str, *, writes: int = 0, tombstones: int = 0, nbytes: int = 0) -> None:
        """Count what was written to a token; `writes` includes the tombstones. Never waits for the store; after `close`
        nothing is counted. KeyValueArgumentError for a token that cannot have a row.
        """
        with self._changed:
            if self._closed:
                return
            if token not in self._totals:
                # A row of its own each time, since what an earlier one of this writer holds is not remembered.
                key = _key(token, uuid4().hex)
                check_row(PARTITION, partition_bytes(PARTITION), key, b"")
                self._rows[token] = key
                self._totals[token] = Counts()
            self._totals[token] += Counts(writes, tombstones, nbytes)
            first = not self._dirty
            if first:
                self._since = self._clock()
            self._dirty.add(token)
            self._pending += writes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=COUNTING, daemon=True)
                self._thread.start()
            if first or self._pending >= self._flush_writes:
                self._changed.notify_all()

    def flush(self) -> None:
        """Write what was counted. DatabaseError when that is not possible; it is still counted then."""
        with self._writing:
            with self._changed:
                dirty, self._dirty, pending, self._pending = self._dirty, set(), self._pending, 0
                written = {token: self._totals[token] for token in sorted(dirty)}
                rows = [(self._rows[token], counts.encode()) for token, counts in written.items()]
            try:
                self._kv.set_many(PARTITION, rows)
            except BaseException:
                # Also when the thread is interrupted: the next flush writes what this one did not.
                with self._changed:
                    self._dirty |= dirty & self._totals.keys()
                    self._pending += pending
                    self._since = self._clock()
                raise
            with self._changed:
                clean = [token for token in self._totals if token not in self._dirty]
                for token in clean[: max(0, len(self._totals) - _REMEMBERED)]:
                    del self._totals[token], self._rows[token]
                    self._nudged.pop(token, None)
            self._tell_sensor(written)

    def _tell_sensor(self, written: dict[str, Counts]) -> None:
        """Once for each time that a token has another threshold of tombstones."""
        if self._nudge is None:
            return
        for token, counts in written.items():
            reached = counts.tombstones // self._nudge.tombstones
            for _ in range(self._nudged.get(token, 0), reached):
                self._nudge.call(token, counts)
            if reached:
                self._nudged[token] = reached

    def close(self) -> None:
        """Stop counting, and write what was counted. DatabaseError when that is not possible."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _run(self) -> None:
        while self._wait():
            try:
                self.flush()
            except DatabaseError:
                # Counters are hints: the next round tries again, and `close` reports what is lost.
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, self._flush_seconds)

    def _wait(self) -> bool:
        """Until there is something to write; False when it is up to `close`."""
        with self._changed:
            while not self._closed:
                left = self._since + self._flush_seconds - self._clock() if self._dirty else None
                if left is not None and (left <= 0 or self._pending >= self._flush_writes):
                    return True
                self._changed.wait(left)
            return False

    def read(self, tokens: Iterable[str]) -> dict[str, Counts]:
        """Return the stored counts of all writers, for each of the tokens; tokens without counters are absent."""
        wanted = sorted(set(tokens), key=partition_bytes)
        found: dict[str, Counts] = {}
        bounds = [(token, token) for token in wanted] if len(wanted) <= _EACH else [(wanted[0], wanted[-1])]
        inside = set(wanted)
        for first, last in bounds:
            for key, value in self._stored(first, last):
                token = key.rpartition(b"\0")[0].decode(errors="surrogateescape")
                if token in inside:
                    counts = Counts.decode(value, name=f"{PARTITION}: row {shown_bytes(key, 200)}")
                    found[token] = found.get(token, Counts()) + counts
        return found

    def forget(self, token: str) -> None:
        """Delete the counters of a token, of all writers. One that counts more for it later begins a row again."""
        with self._writing:
            with self._changed:
                self._dirty.discard(token)
                self._totals.pop(token, None)
                self._rows.pop(token, None)
                self._nudged.pop(token, None)
            self._kv.delete_many(PARTITION, [key for key, _ in self._stored(token, token)])

    def prime(self, token: str, *, store: bool = True) -> Counts:
        """The counters of a token; if it has none, its rows are counted by a scan and the result is stored (`store`).

        Writes that another writer counted but did not write yet may be counted twice.
        """
        if counted := self.read([token]).get(token):
            return counted
        counts = Counts()
        for changes in StagedTokens(self._kv).changes(token):
            counts += Counts(len(changes), int(tombstones(changes).sum()), changes.nbytes)
        if counts.writes and store:
            try:
                self._kv.set_if(PARTITION, _key(token, PRIMED), counts.encode(), Presence.ABSENT)
            except PredicateFailedError:
                # Another process has counted the same rows: all use the result that is stored.
                return self.read([token])[token]
        return counts

    def _stored(self, first: str, last: str) -> Iterator[Pair]:
        """The rows of the tokens from `first` to `last`."""
        # The byte after the zero that ends a token's name.
        for rows in self._kv.scan(PARTITION, _key(first, ""), _key(last, "")[:-1] + b"\x01"):
            yield from rows


def _key(token: str, row: str) -> bytes:
    return partition_bytes(token) + b"\0" + row.encode()
