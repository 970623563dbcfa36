"""The update log of a catalog in etcd (docs/design/catalogs.md#update-log)."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from compaction.catalogs.errors import (
    CatalogLogCutError,
    CatalogLogError,
    CatalogLogLimitError,
    CatalogLogRewoundError,
    CatalogLogSizeError,
    CatalogLogUnavailableError,
    CatalogLogUncertainError,
)
from compaction.catalogs.log import layout
from compaction.catalogs.log.etcd.wire import EtcdClient, Get, Put, Transaction, TransactionAnswer
from compaction.catalogs.log.layout import (
    AT_ONCE,
    FIRST_VERSION,
    STAMP_BYTES,
    Keys,
    LogSurvey,
    Stored,
    activation_of,
    pack,
    short_name,
    shown,
    surveyed,
    unpack,
)
from compaction.catalogs.log.port import LogEvent, LogTime, Recovered, Renewal, SnapshotOutcome, Watch
from compaction.catalogs.log.watching import EtcdWatch, Listener, Position, WatchPace, read_log
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate

_WRITER_BYTES: Final = 8
APPEND_SECONDS: Final = 15.0
"""How long an append with a renewal is sent again, each time with the time of that moment."""
HEARD_SECONDS: Final = 10.0
"""How long an answer says what a member's clock is; a clock that is set meanwhile is noticed after that."""


class EtcdUpdateLog:
    """An `UpdateLog`. Any thread may use it; it makes threads for watches alone.

    `prefix`: the catalog's own part of etcd, for example `/catalogs/orders`. `writer`: name of this process, which
    stands in the log beside what it writes; host and process id if not given.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        *,
        pace: WatchPace | None = None,
        writer: str | None = None,
    ) -> None:
        self._client = client
        self._keys = Keys(prefix.rstrip("/"))
        self._pace = pace or WatchPace()
        self._writer = secrets.token_bytes(_WRITER_BYTES)
        self._name = short_name(writer or f"{socket.gethostname()}:{os.getpid()}")
        self._writes = count(1)
        self._begun = False
        self._own = (0, 0)
        """The last version that this object wrote, and its activation time: one that follows begins later at once."""
        self._start = Position(0)
        self._watches: list[EtcdWatch] = []
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Endpoints and prefix, for messages."""
        return f"{self._client.name}{self._keys.prefix}"

    @property
    def writer(self) -> str:
        return self._name

    def time(self) -> LogTime | None:
        heard = self._client.heard()
        if heard is None or heard.age > HEARD_SECONDS:
            self._client.range(Get(self._keys.product))
            heard = self._client.heard()
        return None if heard is None else LogTime(heard.earliest, heard.latest, f"etcd member {heard.endpoint}")

    def recover(self) -> Recovered:
        reading = read_log(self._client, self._keys)
        with self._lock:
            self._start = reading.end
        return reading.recovered

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        version, stamp, began, resent = update.version, self._stamp(), time.monotonic(), False
        before, activation = self._own, activation_of(update, timestamp)
        if before[0] == version - 1:
            activation = max(activation, before[1] + 1)
        self._begin()
        while True:
            what = layout.append_transaction(self._keys, version, activation, self._packed(update, activation, stamp))
            try:
                answer = self._send(version, what, within=None if renewal is None else renewal.seconds)
            except CatalogLogUnavailableError:
                if renewal is None or time.monotonic() - began >= APPEND_SECONDS:
                    raise
                # It may be in the log by now: then the stamp says so, whatever time is sent the next time.
                activation, resent = max(activation, activation_of(update, renewal.now())), True
                continue
            if answer.succeeded:
                self._own = version, activation
                return True
            found = self._survey(version)
            if found.asked is not None and found.asked.stamp == stamp:
                return True  # an earlier sending, whose answer was lost
            if found.version == version - 1 and found.activation >= activation:
                activation = found.activation + 1
                continue
            # Another writer's update settles it. A snapshot in its place, or nothing, does not.
            cut = found.snapshot >= version and (found.asked is None or isinstance(found.asked.event, Snapshot))
            return (answer.repeated or resent) and cut and self._was_written(version, stamp, found)

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        if snapshot.version < FIRST_VERSION:
            return SnapshotOutcome.NOT_NEWER
        stamp = self._stamp()
        value = self._packed(snapshot, snapshot.activation_time, stamp)
        self._begin()
        self._require_same(snapshot, self._survey(snapshot.version))
        answer = self._send(snapshot.version, layout.snapshot_transaction(self._keys, snapshot.version, token, value))
        outcome = SnapshotOutcome.SAVED if answer.succeeded else self._refusal(snapshot, token, stamp)
        if outcome is not SnapshotOutcome.FENCED:
            # What fails is left to the next sweep: the snapshot itself is saved.
            with contextlib.suppress(CatalogLogError):
                self.sweep()
        return outcome

    def sweep(self) -> None:
        found = self._survey()
        while True:
            page = self._client.range(layout.oldest_garbage(self._keys, found.snapshot))
            if not page.pairs:
                return
            start = self._keys.version_of(page.pairs[0].key)
            end = min(start + AT_ONCE, found.snapshot)
            if not self._client.transaction(layout.sweep_transaction(self._keys, start, end)).succeeded:
                return

    def claim(self, least: int, *, begins: bool = True) -> int:
        if begins:
            self._begin()
        while True:
            largest = self._survey().token
            token = max(least, largest + 1)
            # After a lost answer the second sending is refused: the token of the first is left unused.
            if self._client.transaction(layout.claim_transaction(self._keys, largest, token)).succeeded:
                return token

    def watch(self, after: int, deliver: Callable[[LogEvent], None], failed: Callable[[Exception], None]) -> Watch:
        with self._lock:
            start = self._start if self._start.revision == after else Position(after)
            watch = EtcdWatch(self._client, self._keys, start, Listener(deliver, failed), self._pace)
            self._watches.append(watch)
        watch.start()
        return watch

    def close(self) -> None:
        """Watches end, and the client with them."""
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        self._client.close()
        for watch in watches:
            watch.join()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _stamp(self) -> bytes:
        """Different for each write of each writer."""
        return self._writer + next(self._writes).to_bytes(STAMP_BYTES - _WRITER_BYTES, "big")

    def _packed(self, event: Event, activation: int, stamp: bytes) -> bytes:
        return pack(self._keys, Stored(event, activation, stamp, self._name))

    def _send(self, version: int, what: Transaction, *, within: float | None = None) -> TransactionAnswer:
        try:
            return self._client.transaction(what, within=within)
        except CatalogLogSizeError as error:
            size = sum(len(part.value) for part in what.success if isinstance(part, Put))
            raise CatalogLogLimitError(version, size, error.reason) from error

    def _begin(self) -> None:
        """Make the prefix a log when it is none, before the first write of this object. Raises
        CorruptCatalogLogError when it is another product's.
        """
        if self._begun:
            return
        if not self._client.transaction(layout.first_keys(self._keys)).succeeded:
            self._survey()
        self._begun = True

    def _survey(self, version: int = 0) -> LogSurvey:
        """The log's numbers, and what it holds of a version."""
        found = surveyed(self._keys, self._client.transaction(layout.survey(self._keys, version)).found)
        if found is None:
            raise CatalogLogRewoundError(self.name, "it does not exist, and it did before")
        return found

    def _was_written(self, version: int, stamp: bytes, found: LogSurvey) -> bool:
        """Return whether an append whose answer was lost wrote its version, which a snapshot has replaced since: the
        history of etcd knows.
        """
        key = self._keys.update(version)
        try:
            page = self._client.range(Get(key), found.snapshot_changed - 1)
        except CatalogLogCutError:
            page = None
        if page is None or not page.pairs:
            reason = f"no answer came to the write of {shown(key)}, and a snapshot has replaced that version since"
            raise CatalogLogUncertainError(self.name, reason)
        return unpack(self._keys, key, page.pairs[0].value).stamp == stamp

    def _require_same(self, snapshot: Snapshot, found: LogSurvey) -> None:
        """The snapshot stands for what the log holds. It does not after a restore of the log from an older copy, where
        others wrote on.
        """
        version = snapshot.version
        if version > found.version:
            raise CatalogLogRewoundError(self.name, f"it ends at version {found.version}, and has no {version}")
        if version > found.snapshot and found.asked is not None:
            active = found.asked.activation
            if active != snapshot.activation_time:
                reason = f"its version {version} is active at {active}, the snapshot at {snapshot.activation_time}"
                raise CatalogLogRewoundError(self.name, reason)

    def _refusal(self, snapshot: Snapshot, token: int, stamp: bytes) -> SnapshotOutcome:
        found = self._survey(snapshot.version)
        if found.asked is not None and found.asked.stamp == stamp:
            return SnapshotOutcome.SAVED  # an earlier sending, whose answer was lost
        if found.token > token:
            return SnapshotOutcome.FENCED
        if found.snapshot >= snapshot.version:
            return SnapshotOutcome.NOT_NEWER
        raise CatalogLogRewoundError(self.name, f"it ends at version {found.version}, and has no {snapshot.version}")
