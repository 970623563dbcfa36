"""A job on a log whose owner follows compactions and goes on writing, taking snapshots and deleting beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.segments.directory.fs import regular_segments, segment_links
from compaction.segments.memtable import LogEntry
from compaction.segments.model import segment_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.compactions import OwnerCompaction
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments
from support.processes.worker_ports import FakeLease, ThreadEngine, assignment, job_spec
from support.stores.segment_logs import leftovers

WAIT = 120.0


def entries(first: int, last: int) -> list[LogEntry]:
    return [LogEntry(index, 1, b"entry %d " % index * 5) for index in range(first, last + 1)]


@dataclass
class Owner(FakeLease):
    """Writes before each check of the lease, so before each step of the job; at the last of them, it takes a snapshot
    by which more is dead, and deletes that.
    """

    system: LogSystem | None = None
    last: int = 0
    deletes_at: int = 0

    def ensure_held(self) -> None:
        super().ensure_held()
        assert self.system is not None
        log = self.system.open_log("a")
        log.append(entries(self.last + 1, self.last + 4)).result(WAIT)
        self.last += 4
        if self.checks == self.deletes_at:
            log.snapshot(48, 1, b"\x83j", LiveSet.parse("9,20,33")).result(WAIT)
            self.system._snapshots.submit(int).result(WAIT)
        self.system.roll().result(WAIT)
        assert self.system.drain(WAIT)


def test_a_job_of_the_operator_and_the_owners_own_work_go_together(tmp_path: Path, engine: ThreadEngine) -> None:
    limits = SystemLimits(segments=NewSegments(max_count=8), compaction=OwnerCompaction(phase_one=False))
    with LogSystem(tmp_path / "system", limits=limits) as system:
        log = system.open_log("a")
        log.append(entries(1, 60)).result(WAIT)
        system.roll().result(WAIT)
        assert system.drain(WAIT)
        log.snapshot(40, 1, b"\x83j", LiveSet.parse("9,17,20,33")).result(WAIT)
    with LogSystem(tmp_path / "system", limits=SystemLimits(segments=NewSegments(max_count=8))) as system:
        log = system.open_log("a")
        spec = job_spec(log.directory, limits=SegmentLimits(max_entries=8))
        planned = spec.sources.segment_log
        assert planned is not None
        assert planned.obsolete == (segment_name(1),)
        SegmentLogStore(tmp_path).claim(log.directory, job="job-1", token=1)
        lease = Owner(system=system, last=60, deletes_at=2, token=1)
        report = SegmentRewriter(engine, holder="worker-1").run(assignment(spec, token=1), lease)
        assert (report.outcome, report.reason) == (ReportOutcome.SUCCEEDED, JobReason.COMPLETED), report.message
        assert lease.checks >= 3
        assert report.receipt is not None
        # What the owner deleted first needed no mark.
        assert report.receipt.obsolete == ()
        assert segment_name(1) not in regular_segments(log.directory)
        assert segment_links(log.directory) == [segment_name(3), segment_name(5)]
        assert log.read(range(200)) == [
            *entries(9, 9), *entries(20, 20), *entries(33, 33), *entries(49, lease.last),
        ]  # fmt: skip
        assert leftovers(log.directory) == []
