"""A log in memory that delivers while it is written, or when it is pumped; and one that always loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.log.port import LogEvent, Recovered, SnapshotOutcome
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from compaction.catalogs.model.hybrid import later

Deliver = Callable[[LogEvent], None]


@dataclass
class ListLog:
    """Deterministic: no threads. Values go through the codec. `held`: events are delivered by `pump` only."""

    events: dict[int, LogEvent] = field(default_factory=dict)
    held: bool = False
    version: int = 0
    snapshot: int = 1
    revision: int = 0
    token: int = 0
    active: int = 0
    calls: list[str] = field(default_factory=list)
    watches: list[ListWatch] = field(default_factory=list)

    def recover(self) -> Recovered:
        self.calls.append("recover")
        events = tuple(self.events[version] for version in sorted(self.events))
        return Recovered(events, self.version, self.revision, self.token)

    def append(self, update: VersionedUpdate, timestamp: int) -> bool:
        self.calls.append("append")
        if update.version != self.version + 1:
            return False
        moved = max(timestamp, later(self.active, -update.delay) + 1 if self.active else timestamp)
        self.active = later(moved, update.delay)
        self.version = update.version
        self._write(update, moved)
        return True

    def save_snapshot(self, snapshot: Snapshot, token: int) -> SnapshotOutcome:
        self.calls.append("save_snapshot")
        if token < self.token:
            return SnapshotOutcome.FENCED
        if snapshot.version <= self.snapshot:
            return SnapshotOutcome.NOT_NEWER
        self.token, self.snapshot = token, snapshot.version
        self.events = {number: one for number, one in self.events.items() if number >= snapshot.version}
        self._write(snapshot, snapshot.activation_time)
        return SnapshotOutcome.SAVED

    def claim(self, least: int) -> int:
        self.calls.append("claim")
        self.token = max(least, self.token + 1)
        return self.token

    def watch(self, after: int, deliver: Deliver, failed: Callable[[Exception], None]) -> ListWatch:
        self.calls.append("watch")
        watch = ListWatch(self, deliver, failed, after)
        self.watches.append(watch)
        return watch

    def close(self) -> None:
        self.watches.clear()

    def pump(self) -> None:
        """Deliver what no watch has seen yet; cut versions are gone, their snapshot stands for them."""
        for watch in list(self.watches):
            news = [self.events[version] for version in sorted(self.events)]
            news = [event for event in news if event.revision > watch.seen]
            watch.seen = max((event.revision for event in news), default=watch.seen)
            for event in news:
                watch.deliver(event)

    def _write(self, event: VersionedUpdate | Snapshot, timestamp: int) -> None:
        self.revision += 1
        stored = decode(encode(event), f"update {event.version}")
        self.events[event.version] = LogEvent(stored, timestamp, self.revision)
        if not self.held:
            self.pump()


@dataclass
class ListWatch:
    log: ListLog
    deliver: Deliver
    failed: Callable[[Exception], None]
    seen: int

    def close(self) -> None:
        if self in self.log.watches:
            self.log.watches.remove(self)


@dataclass
class LosingLog(ListLog):
    """Each append from number `since` on finds that another process has just written that version: nothing happens in
    it.
    """

    since: int = 1
    lost: int = 0

    def append(self, update: VersionedUpdate, timestamp: int) -> bool:
        if update.version < self.since:
            return super().append(update, timestamp)
        self.lost += 1
        assert super().append(replace(update, entries=()), timestamp)
        return False
