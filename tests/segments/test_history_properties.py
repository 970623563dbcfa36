"""Random histories of a log and its compactor against a model that is one dictionary.

The owner appends, overwrites and takes snapshots (whose live set only shrinks below them); the compactor runs whole
jobs, dies at random system calls, recovers, sweeps. After every step, everything that must survive is readable and
equal.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem, SuddenDeath
from support.segments.segment_logs import Content, compact_log, content, leftovers
from support.timing import examples


class LogMachine(RuleBasedStateMachine):
    """`entries`: index -> (term, payload) of the whole logical log; `live` and `snapshot`: what the owner promises."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="history-"))
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.snapshot = 0
        self.live: set[int] = set()
        self.term = 1
        self.jobs = 0
        self.now = 1000.0

    @initialize(max_count=st.integers(2, 9), entries=st.integers(4, 40), size=st.integers(40, 600))
    def begin(self, max_count: int, entries: int, size: int) -> None:
        self.max_count = max_count
        self.limits = SegmentLimits(max_entries=entries, max_bytes=size, max_sources=4)
        self._append(range(1, 5))

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(count=st.integers(1, 40))
    def append(self, count: int) -> None:
        last = max(self.entries)
        self._append(range(last + 1, last + 1 + count))

    @rule(back=st.integers(1, 30), count=st.integers(1, 30))
    def overwrite(self, back: int, count: int) -> None:
        """A new term truncates the log above the snapshot and writes on from there."""
        first = max(self.snapshot + 1, max(self.entries) - back)
        if first > max(self.entries):
            return
        self.term += 1
        for index in [i for i in self.entries if i >= first]:
            del self.entries[index]
        self._append(range(first, first + count))

    def _append(self, indexes: range) -> None:
        with LogWriter(self.directory, max_count=self.max_count, sync=False) as writer:
            for index in indexes:
                payload = b"%d/%d " % (index, self.term) * (1 + (index * 7 + self.term) % 5)
                writer.append(index, self.term, payload)
                self.entries[index] = (self.term, payload)

    @rule(data=st.data())
    def take_snapshot(self, data: st.DataObject) -> None:
        last = max(self.entries)
        index = data.draw(st.integers(self.snapshot, last), label="snapshot index")
        if index == 0:
            return
        candidates = sorted(self.live | {i for i in self.entries if self.snapshot < i <= index})
        share = data.draw(st.sampled_from([2, 3, 5, 9, 50]), label="one of")
        salt = data.draw(st.integers(0, 9), label="salt")
        self.live = {i for i in candidates if (i * 2654435761 + salt) % share == 0}
        self.snapshot = index
        shutil.rmtree(self.directory / "snapshots", ignore_errors=True)
        write_snapshot(self.directory, index=index, term=self.term, live=LiveSet.from_indexes(self.live), sync=False)

    @precondition(lambda self: self.snapshot > 0)
    @rule()
    def compact(self) -> None:
        self._compact()
        assert [n for n in leftovers(self.directory) if not n.endswith(".partial")] == []
        log = open_log(self.directory)
        waiting = frozenset(t.name for t in fence.read(self.directory).tombstones)
        again = plan_log(log, self.limits, awaiting_deletion=waiting)
        assert again.debt_segments == 0, again

    @precondition(lambda self: self.snapshot > 0)
    @rule(at=st.integers(0, 90), after=st.booleans())
    def compact_and_die(self, at: int, after: bool) -> None:
        with DyingFilesystem(at=at, when="after" if after else "before"):
            try:
                self._compact()
            except SuddenDeath:
                return

    @rule()
    def recover(self) -> None:
        recovery.recover(self.directory, now=self.now)
        assert not recovery.is_needed(self.directory)

    @rule(grace=st.sampled_from([0.0, 5.0, 50.0]), at=st.none() | st.integers(0, 20))
    def sweep(self, grace: float, at: int | None) -> None:
        self.now += 10
        with DyingFilesystem(at=at):
            try:
                sweep.sweep(self.directory, now=self.now, grace_seconds=grace)
            except SuddenDeath:
                return

    def _compact(self) -> None:
        self.jobs += 1
        compact_log(self.directory, self.limits, job=f"job-{self.jobs}", now=self.now)

    @invariant()
    def everything_that_must_survive_is_readable(self) -> None:
        if not self.entries:
            return
        wanted: Content = {
            index: (term, hashlib.sha256(payload).hexdigest())
            for index, (term, payload) in self.entries.items()
            if index > self.snapshot or index in self.live
        }
        assert content(self.directory) == wanted


LogMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
TestHistories = LogMachine.TestCase
