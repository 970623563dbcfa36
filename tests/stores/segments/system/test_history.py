"""Any history of a log, through restarts and background flushes, against a model: a dictionary of what it must hold."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.segments.memtable import LogEntry
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments

WAIT = 120.0
LIMITS = SystemLimits(wal=WalLimits(max_entries=9), segments=NewSegments(max_count=6), snapshot_grace=0.0)
Content = dict[int, LogEntry]


class Histories(RuleBasedStateMachine):
    """`held` is what the log holds; `durable` what it holds after a restart, which forgets truncations."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="history"))
        self.system = LogSystem(self.directory, limits=LIMITS)
        self.log = self.system.open_log("log")
        # Another log in the same files.
        self.other = self.system.open_log("other")
        self.others = 0
        self.held: Content = {}
        self.durable: Content = {}
        self.snapshot_index = -1
        self.truncated: int | None = None
        self.term = 1

    def teardown(self) -> None:
        self.system.close()
        shutil.rmtree(self.directory)

    @property
    def last(self) -> int:
        return max(max(self.held, default=-1), self.snapshot_index)

    def write(self, entries: list[LogEntry]) -> None:
        """In the model."""
        first = entries[0].index
        self.held = {i: e for i, e in self.held.items() if i < first} | {e.index: e for e in entries}
        if self.truncated is not None and first <= self.truncated:
            self.truncated = None
        self.durable = dict(self.held)

    def entries(self, first: int, count: int) -> list[LogEntry]:
        return [LogEntry(i, self.term, b"%d@%d" % (i, self.term)) for i in range(first, first + count)]

    @rule(count=st.integers(1, 7), wait=st.booleans())
    def append(self, count: int, wait: bool) -> None:
        entries = self.entries(self.last + 1, count)
        future = self.log.append(entries)
        self.write(entries)
        if wait:
            assert future.result(WAIT) == (entries[-1].index, self.term)

    @precondition(lambda self: self.last > self.snapshot_index)
    @rule(data=st.data(), count=st.integers(1, 4))
    def overwrite(self, data: st.DataObject, count: int) -> None:
        self.term += 1
        entries = self.entries(data.draw(st.integers(self.snapshot_index + 1, self.last)), count)
        self.log.append(entries)
        self.write(entries)

    @precondition(lambda self: self.truncated is None)
    @rule(gap=st.integers(1, 5))
    def write_sparse(self, gap: int) -> None:
        (entry,) = self.entries(self.last + gap, 1)
        self.log.write_sparse(entry, None if self.last < 0 else self.last)
        self.write([entry])

    @precondition(lambda self: self.last > self.snapshot_index)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.snapshot_index + 1, self.last))
        self.log.truncate(index)
        self.held = {i: e for i, e in self.held.items() if i < index}
        self.truncated = index if self.truncated is None else min(index, self.truncated)

    @precondition(lambda self: self.truncated is None and any(i > self.snapshot_index for i in self.held))
    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from([i for i in self.held if i > self.snapshot_index]))
        live = data.draw(st.sets(st.sampled_from([i for i in self.held if i <= index])))
        if data.draw(st.booleans()):
            self.log.append(self.entries(self.last + 1, 1)).result(WAIT)
            self.write(self.entries(self.last + 1, 1))
        else:
            # Maybe of the last entry, behind which a tail was overwritten.
            self.system.roll().result(WAIT)
        self.log.snapshot(index, self.term, b"\x83j", LiveSet.from_indexes(live)).result(WAIT)
        self.held = {i: e for i, e in self.held.items() if i > index or i in live}
        self.durable = dict(self.held)
        self.snapshot_index = index

    @rule(count=st.integers(1, 9))
    def write_another_log(self, count: int) -> None:
        self.other.append([LogEntry(i, 1, b"other") for i in range(self.others, self.others + count)])
        self.others += count

    @rule()
    def roll(self) -> None:
        self.system.roll()

    @rule()
    def flush(self) -> None:
        self.system.roll().result(WAIT)
        assert self.system.drain(WAIT)
        assert self.log.state.unflushed == 0
        if self.truncated is None:
            # What readers of the files alone find.
            state = open_log(self.log.directory) if self.log.state.segments else None
            found = (
                {} if state is None else {e.index: e for e in iter_entries(state, live_only=self.snapshot_index >= 0)}
            )
            assert {i: (e.term, e.payload) for i, e in found.items()} == {
                i: (e.term, e.payload) for i, e in self.held.items()
            }

    @rule()
    def restart(self) -> None:
        self.system.close()
        self.system = LogSystem(self.directory, limits=LIMITS)
        self.log, self.other = self.system.open_log("log"), self.system.open_log("other")
        self.held, self.truncated = dict(self.durable), None
        assert self.log.last == self.log.last_written

    @invariant()
    def the_log_holds_what_the_model_holds(self) -> None:
        assert list(self.log.indexes()) == sorted(self.held)
        assert self.log.read(range(self.last + 3)) == [self.held[i] for i in sorted(self.held)]
        last = self.log.last
        assert (-1 if last is None else last.index) == self.last
        if last is not None and last.index in self.held:
            assert last.term == self.held[last.index].term
        assert len(self.other.indexes()) == self.others


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=30)
