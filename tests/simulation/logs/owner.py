"""The owner: whatever an application may do with its logs, chosen by dice, noted as promises."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from compaction.segments.errors import SegmentLogError, WriteRefusedError
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from simulation.logs.compactor import FOLLOWER, Follower
from simulation.logs.steps import Damage, SteppedSystem
from support.faults.power_loss import Recorder
from support.segments.owned_logs import History, needed

LIMITS = SystemLimits(
    wal=WalLimits(max_entries=8), segments=NewSegments(max_count=4), rolled_files=2, snapshot_grace=0.0
)
UIDS = ("a", "b")


@dataclass
class Owner:
    """One life of the owner's process. `histories`: what each log's disk may hold; `recorder` gets the promises.

    `requested`: the highest index of a snapshot that was asked for: nothing at or below it is overwritten. `busy`:
    threads in the middle of a step. `errors`: with which futures failed, for no good reason.
    """

    directory: Path
    dice: Random
    histories: dict[str, History]
    recorder: Recorder
    follower: Follower
    requested: dict[str, int] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stepped = SteppedSystem(self.directory, LIMITS, clock=lambda: 0.0)
        for uid in UIDS:
            log = self.stepped.system.open_log(uid)
            self.histories.setdefault(uid, History())
            self.requested[uid] = -1 if log.row.snapshot_index is None else log.row.snapshot_index
            self.terms[uid] = 1 if log.last is None else log.last.term
        self.stepped.system.open_log(FOLLOWER)

    def act(self) -> str:
        """One operation on one log, or one step of a thread."""
        log = self.stepped.system.open_log(self.dice.choice(UIDS))
        actions = {
            self.append: 8,
            self.overwrite: 3,
            self.sparse: 2,
            self.snapshot: 4,
            self.read: 2,
            self.roll: 1,
            self.step: 12,
            self.install: 1.5,
        }
        (action,) = self.dice.choices(list(actions), list(actions.values()))
        said = action(log)
        assert self.errors == []
        return f"{log.name}: {action.__name__}: {said}"

    def install(self, _: Log) -> str:
        return self.follower.install(self.stepped, self.busy, self.recorder)

    def step(self, _: Log) -> str:
        return self.step_one()

    def step_one(self) -> str:
        """Of a thread that is not in the middle of one."""
        name = self.dice.choice([name for name in self.stepped.threads if name not in self.busy])
        self.busy.add(name)
        try:
            return f"{name} {self.stepped.threads[name]()}"
        finally:
            self.busy.discard(name)

    def roll(self, _: Log) -> str:
        self.stepped.system.roll()
        return ""

    def append(self, log: Log) -> str:
        return self._write(log, self._last(log) + 1, self.dice.randint(1, 6))

    def overwrite(self, log: Log) -> str:
        """By a write that goes back, or by a truncation whose place the next write takes."""
        low, high = self.requested[log.name] + 1, self._last(log)
        if low > high:
            return "nothing"
        first = self.dice.randint(low, high)
        self.terms[log.name] += 1
        if self.dice.random() < 0.5:
            log.truncate(first)
            first = self._last(log) + 1
        return self._write(log, first, self.dice.randint(1, 3))

    def sparse(self, log: Log) -> str:
        last = self._last(log)
        entry = self._entry(log, last + self.dice.randint(1, 4))
        try:
            future = log.write_sparse(entry, None if last < 0 else last)
        except WriteRefusedError:
            # What was truncated, or overwritten by an entry that is dead, would be there again.
            return "refused"
        return self._promise(log, [entry], future)

    def snapshot(self, log: Log) -> str:
        """At an entry that is durable, with any of the entries up to there that are still needed."""
        written = -1 if log.last_written is None else log.last_written.index
        candidates = [index for index in log.indexes() if self.requested[log.name] < index <= written]
        if not candidates:
            return "nothing"
        index = self.dice.choice(candidates)
        share = self.dice.choice((0.0, 0.3, 0.7))
        live = tuple(i for i in log.indexes(0, index) if self.dice.random() < share)
        (entry,) = log.read([index])
        history = self.histories[log.name]
        history.snapshots.append((index, live))
        count = len(history.snapshots)
        self.requested[log.name] = index
        future = log.snapshot(index, entry.term, b"\x83j", LiveSet.from_indexes(live))

        def done() -> None:
            error = future.exception()
            if error is None:
                self.recorder.mark(("snapshot", log.name, count))
            elif not isinstance(error, WriteRefusedError):
                # Two that wait at once: what is live for the second one may be dead for the first. All else is wrong.
                self.errors.append(error)

        future.add_done_callback(lambda _: done())
        return f"at {index}, {len(live)} live"

    def read(self, log: Log) -> str:
        """What a reader gets now is what was written, durable or not."""
        history = self.histories[log.name]
        content = {entry.index: entry for entry in log.read(log.indexes())}
        expected = needed(history.after(len(history.writes)), log.row)
        assert content == expected, f"{log.name} reads {sorted(content)}, not {sorted(expected)}: {log.row}"
        return f"{len(content)} entries"

    def check_files(self) -> None:
        """When everything is flushed, readers of the files alone find the same."""
        self.stepped.finish()
        self.stepped.system.roll()
        self.stepped.finish()
        self.follower.check(self.stepped.system.open_log(FOLLOWER), len(self.follower.offered))
        for uid in UIDS:
            log = self.stepped.system.open_log(uid)
            self.read(log)
            found = {}
            if any((self.directory / uid).glob("*.segment")):
                entries = iter_entries(open_log(self.directory / uid))
                found = {entry.index: (entry.term, bytes(entry.payload)) for entry in entries}
            held = {entry.index: (entry.term, entry.payload) for entry in log.read(log.indexes())}
            assert {i: e for i, e in found.items() if log.row.needs(i)} == held, f"{uid}: files hold {sorted(found)}"

    def check_all_but(self, damage: Damage) -> None:
        """Every entry that is not damaged reads as it was written; a damaged one is an error with its index."""
        for uid in UIDS:
            log = self.stepped.system.open_log(uid)
            history = self.histories[uid]
            for index, entry in needed(history.after(len(history.writes)), log.row).items():
                if (uid, index) != (damage.uid, damage.index):
                    assert log.read([index]) == [entry]
                    continue
                found, error = self._tried(log, index)
                # Above the snapshot an index that is not there may be a gap.
                gap = found == [] and (log.row.snapshot_index is None or index > log.row.snapshot_index)
                # A flush that was repeated after a crash left the same entry in an older segment.
                assert gap or found == [entry] or (error is not None and damage.is_named_by(error)), (
                    f"{uid}: {found}, {error}"
                )

    def _tried(self, log: Log, index: int) -> tuple[list[LogEntry], SegmentLogError | None]:
        try:
            return log.read([index]), None
        except SegmentLogError as error:
            return [], error

    def _last(self, log: Log) -> int:
        return -1 if log.last is None else log.last.index

    def _entry(self, log: Log, index: int) -> LogEntry:
        return LogEntry(index, self.terms[log.name], b"%s %d %d" % (log.uid, index, self.terms[log.name]) * 3)

    def _write(self, log: Log, first: int, count: int) -> str:
        entries = [self._entry(log, index) for index in range(first, first + count)]
        return self._promise(log, entries, log.append(entries))

    def _promise(self, log: Log, entries: list[LogEntry], future: Future[LogPosition]) -> str:
        history = self.histories[log.name]
        history.writes += entries
        written = len(history.writes)

        def done() -> None:
            error = future.exception()
            if error is None:
                self.recorder.mark(("written", log.name, written))
            else:
                self.errors.append(error)

        future.add_done_callback(lambda _: done())
        return f"{entries[0].index}..{entries[-1].index}"
