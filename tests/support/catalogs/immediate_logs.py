"""A log in memory that delivers while it is written, or when it is pumped; and one that always loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from compaction.catalogs.codec.codec import decode, encode
from compaction.catalogs.log.port import LogEvent, Recovered, Renewal, SnapshotOutcome, Watch
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from support.catalogs.memory_log import MemoryUpdateLog, MemoryWatch


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
