"""A follower: a log of the same system that gets snapshots of another one installed, with their live entries."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry
from compaction.segments.system.log import Log
from simulation.logs.steps import SteppedSystem
from support.faults.power_loss import Recorder

FOLLOWER, LEADER = "c", "a"


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot that was installed, or begun to be: its index, and the live entries that belong to it."""

    index: int
    content: dict[int, LogEntry]


@dataclass
class Follower:
    """Over all lives. `offered`: in order; the log holds exactly one of them, or nothing."""

    offered: list[Offered]

    def install(self, stepped: SteppedSystem, busy: set[str], recorder: Recorder) -> str:
        """The leader's newest snapshot, if the follower does not have it."""
        source, target = stepped.system.open_log(LEADER), stepped.system.open_log(FOLLOWER)
        while stepped.threads["snapshots"]():
            pass
        index, applied = source.row.snapshot_index, target.row.snapshot_index
        if index is None or (applied is not None and index <= applied):
            return "nothing"
        self.offered.append(Offered(index, {entry.index: entry for entry in source.read(source.indexes(0, index))}))
        count = len(self.offered)
        busy.add("snapshots")
        try:
            with stepped.patient():
                installed = install_snapshot(source, target, term=1, transfer=count, applied=applied)
        finally:
            busy.discard("snapshots")
        assert installed is not None
        assert installed.index == index
        recorder.mark(("installed", FOLLOWER, count))
        self.check(target, count)
        return f"at {index}, {len(self.offered[-1].content)} live"

    def check(self, log: Log, promised: int) -> None:
        """It holds a snapshot that was reported as installed, or a later one, with its live entries and no others."""
        row = log.row
        content = {entry.index: entry for entry in log.read(log.indexes())}
        found = None if row.snapshot_index is None else Offered(row.snapshot_index, content)
        allowed: list[Offered | None] = [None, *self.offered]
        assert found in allowed[promised:], f"follower: {row}, {sorted(content)}; {promised} promised, {allowed[-3:]}"
        assert found is not None or content == {}, f"follower: {sorted(content)} of an interrupted installation"

    def left(self, log: Log) -> Follower:
        """After a failure: what is there is promised."""
        if log.row.snapshot_index is None:
            return Follower([])
        return Follower([Offered(log.row.snapshot_index, {entry.index: entry for entry in log.read(log.indexes())})])
