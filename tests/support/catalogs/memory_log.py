"""An update log in memory, for simulations and tests (docs/design/catalogs.md#log-in-memory)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.errors import CatalogLogLimitError, CatalogLogRewoundError, CatalogLogUnavailableError
from compaction.catalogs.log.layout import FIRST_VERSION, STAMP_BYTES, Keys, Stored, activation_of, pack
from compaction.catalogs.log.port import LogEvent, LogTime, Recovered, Renewal, SnapshotOutcome, Watch
from compaction.catalogs.model.descriptors import LOGICAL_BITS
from compaction.catalogs.model.entries import Event, Snapshot, VersionedUpdate

NAME = "in memory"
_KEYS = Keys("")
_STAMP = bytes(STAMP_BYTES)


@dataclass
class MemoryWatch:
    """The function that events are delivered to, and the revision up to which that is done."""

    deliver: Callable[[LogEvent], None]
    after: int
    pending: list[LogEvent] = field(default_factory=list)
    """Of a listing, which took the place of history that is forgotten."""
    open: bool = True

    def close(self) -> None:
        self.open = False


class MemoryUpdateLog:
    """An `UpdateLog` whose watches deliver when `pump` is called, in the thread that calls it. Several catalogs may
    share it; every call may come from any thread.
    """

    writer = NAME

    def __init__(self, most_bytes: int = 1_572_864) -> None:
        """`most_bytes` of a value: it refuses larger ones, as etcd does."""
        self._most_bytes = most_bytes
        self._lock = threading.RLock()
        self._kept: dict[int, LogEvent] = {}
        self._history: list[LogEvent] = []
        self._version = self._activation = self._token = 0
        self._snapshot = FIRST_VERSION
        self._revision = 1
        self._watches: list[MemoryWatch] = []
        self._closed = False

    @property
    def version(self) -> int:
        """The last version, 0 for none."""
        return self._version

    @property
    def earliest(self) -> int:
        """The version of the snapshot, 1 for none."""
        return self._snapshot

    def time(self) -> LogTime | None:
        """It has no clock."""
        return None

    def recover(self) -> Recovered:
        with self._lock:
            self._require_open()
            kept = tuple(self._kept[version] for version in sorted(self._kept))
            return Recovered(kept, self._version, self._revision, self._token)

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        activation = activation_of(update, timestamp)
        self._check(update, activation)
        with self._lock:
            self._require_open()
            if self._version != update.version - 1:
                return False
            self._activation = max(activation, self._activation + 1)
            self._version = update.version
            self._write(update, self._activation - (update.delay << LOGICAL_BITS))
            return True

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        if snapshot.version < FIRST_VERSION:
            return SnapshotOutcome.NOT_NEWER
        self._check(snapshot, snapshot.activation_time)
        with self._lock:
            self._require_open()
            self._require_same(snapshot)
            if token < self._token:
                return SnapshotOutcome.FENCED
            if snapshot.version <= self._snapshot:
                return SnapshotOutcome.NOT_NEWER
            self._token, self._snapshot = token, snapshot.version
            self._kept = {version: kept for version, kept in self._kept.items() if version > snapshot.version}
            self._write(snapshot, snapshot.activation_time)
            return SnapshotOutcome.SAVED

    def sweep(self) -> None:
        """Nothing is left below a snapshot."""

    def claim(self, least: int, *, begins: bool = True) -> int:
        with self._lock:
            self._require_open()
            self._token = max(least, self._token + 1)
            return self._token

    def watch(self, after: int, deliver: Callable[[LogEvent], None], failed: Callable[[Exception], None]) -> Watch:
        """As the port says, except that `pump` delivers. Nothing fails in memory."""
        with self._lock:
            self._require_open()
            watch = MemoryWatch(deliver, after)
            self._watches.append(watch)
            return watch

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._watches.clear()

    def pump(self, most: int | None = None) -> int:
        """Deliver what is due, to the watches in the order of their start, at most so many events; how many it was.
        What a delivery writes is delivered too.
        """
        delivered = 0
        while most is None or delivered < most:
            found = self._due()
            if found is None:
                return delivered
            watch, event = found
            watch.deliver(event)
            delivered += 1
        return delivered

    def forget_history(self) -> None:
        """Keep of the past what the log holds, as a compaction of etcd's own history does: a watch that is behind gets
        the snapshot in the place of what was cut.
        """
        with self._lock:
            self._history.clear()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise CatalogLogUnavailableError(NAME, "it is closed")

    def _require_same(self, snapshot: Snapshot) -> None:
        if snapshot.version > self._version:
            raise CatalogLogRewoundError(NAME, f"it ends at version {self._version}, and has no {snapshot.version}")
        kept = self._kept.get(snapshot.version)
        if snapshot.version > self._snapshot and kept is not None and isinstance(kept.event, VersionedUpdate):
            active = kept.activation_time
            if active != snapshot.activation_time:
                reason = f"its version {snapshot.version} is active at {active}, and not at the snapshot's time"
                raise CatalogLogRewoundError(NAME, reason)

    def _check(self, event: Event, activation: int) -> None:
        """As etcd would refuse it, so that a simulation meets the same limits."""
        size = len(pack(_KEYS, Stored(event, activation, _STAMP)))
        if size > self._most_bytes:
            raise CatalogLogLimitError(event.version, size, f"it takes {self._most_bytes:,}")

    def _write(self, event: Event, timestamp: int) -> None:
        self._revision += 1
        written = LogEvent(event, timestamp, self._revision, NAME)
        self._kept[event.version] = written
        self._history.append(written)

    def _due(self) -> tuple[MemoryWatch, LogEvent] | None:
        with self._lock:
            self._watches = [watch for watch in self._watches if watch.open]
            for watch in self._watches:
                event = self._next(watch)
                if event is not None:
                    return watch, event
            return None

    def _next(self, watch: MemoryWatch) -> LogEvent | None:
        """The next event of a watch, and the watch is past it."""
        if not watch.pending and watch.after < self._revision:
            if self._history and self._history[0].revision <= watch.after + 1:
                event = self._history[watch.after + 1 - self._history[0].revision]
                watch.after = event.revision
                return event
            # History does not reach back: what the log holds, in the order of versions, the snapshot first.
            missed = (self._kept[version] for version in sorted(self._kept))
            watch.pending = [replace(item, revision=self._revision) for item in missed if item.revision > watch.after]
            watch.after = self._revision
        return watch.pending.pop(0) if watch.pending else None


# A log in memory that delivers while it is written, or when it is pumped; and one that always loses.


class ListLog(MemoryUpdateLog):
    """Values go through the codec; closing it ends its watches and nothing else. `held`: events are delivered by `pump`
    only. `events`: what it holds at the beginning.
    """

    def __init__(self, events: Mapping[int, LogEvent] | None = None, *, held: bool = False) -> None:
        super().__init__()
        self.held = held
        self.calls: list[str] = []
        self.failures: list[Callable[[Exception], None]] = []
        """What each watch calls when it fails."""
        if events:
            self._kept = dict(events)
            self._version, self._snapshot = max(events), min(events)
            self._activation = events[self._version].activation_time
            self._revision = max(event.revision for event in events.values())

    @property
    def events(self) -> dict[int, LogEvent]:
        return self._kept

    @property
    def watches(self) -> list[MemoryWatch]:
        return [watch for watch in self._watches if watch.open]

    @property
    def revision(self) -> int:
        return self._revision

    def recover(self) -> Recovered:
        self.calls.append("recover")
        return super().recover()

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        self.calls.append("append")
        stored = decode(encode(update), f"update {update.version}")
        assert isinstance(stored, VersionedUpdate)
        return super().append(stored, timestamp) and self._written()

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        """Of what is cut, a watch that is behind gets the snapshot."""
        self.calls.append("save_snapshot")
        outcome = super().save_snapshot(snapshot, token)
        if outcome is SnapshotOutcome.SAVED:
            self.forget_history()
            self._written()
        return outcome

    def watch(self, after: int, deliver: Callable[[LogEvent], None], failed: Callable[[Exception], None]) -> Watch:
        self.calls.append("watch")
        self.failures.append(failed)
        return super().watch(after, deliver, failed)

    def close(self) -> None:
        self._watches.clear()

    def _written(self) -> bool:
        if not self.held:
            self.pump()
        return True


class LosingLog(ListLog):
    """Each append from number `since` on finds that another process has just written that version: nothing happens in
    it.
    """

    def __init__(self, *, since: int = 1) -> None:
        super().__init__()
        self.since = since
        self.lost = 0

    def append(self, update: VersionedUpdate, timestamp: int, *, renewal: Renewal | None = None) -> bool:
        if update.version < self.since:
            return super().append(update, timestamp)
        self.lost += 1
        assert super().append(replace(update, entries=()), timestamp)
        return False
