"""A SegmentRewrite job with a clump request on real directories: what is committed, refused, resumed and reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome, parse_report
from compaction.api.policy.segment_logs import ClumpRequest
from compaction.segments.adapter import identity_of
from compaction.segments.clump.moves import read_moves
from compaction.segments.commit import fence
from compaction.segments.directory.fs import regular_segments, segment_links
from compaction.segments.generate import Pattern, corrupt_entry
from compaction.segments.memtable import LogEntry
from compaction.segments.model import segment_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.compactions import OwnerCompaction
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments
from compaction.worker.errors import LeaseLostError
from support.clocks import PATIENCE_SECONDS
from support.processes.worker_ports import FakeLease, ThreadEngine, assignment, job_spec
from support.segments.log_owners import live_payloads, under_the_maps
from support.segments.segment_logs import leftovers

MakeLog = Callable[..., Path]
# 192 entries are live, every third one: five new segments.
SMALL = SegmentLimits(max_entries=40)


@pytest.fixture
def log(make_log: MakeLog) -> Path:
    return make_log(pattern=Pattern.STRIDED)


def spec(directory: Path, *, snapshot_index: int = 0, **request: Any) -> CompactionJobSpec:
    wanted = ClumpRequest(owner_stopped=True, **request)
    return job_spec(directory, limits=SMALL, groups=(), obsolete=(), clump=wanted, snapshot_index=snapshot_index)


def run(job: CompactionJobSpec, engine: ThreadEngine, *, token: int = 1, lease: FakeLease | None = None) -> JobReport:
    rewriter = SegmentRewriter(engine, holder="worker-1")
    return rewriter.run(assignment(job, token=token), lease or FakeLease(token=token))


def test_a_job_moves_what_is_sparse_and_says_so(log: Path, engine: ThreadEngine) -> None:
    before, lease = live_payloads(log), FakeLease()
    state = open_log(log)
    assert state.live is not None
    report = run(spec(log, snapshot_index=state.snapshot_index or 0), engine, lease=lease)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert under_the_maps(log, before) == before
    assert leftovers(log) == []
    receipt = report.receipt
    assert receipt is not None
    assert receipt.clump is not None
    moved = len(state.live)
    assert (receipt.records, receipt.clump.entries_moved) == (moved, moved)
    assert (receipt.clump.ranges_before, receipt.clump.ranges_after) == (moved, 1)
    assert (receipt.clump.first_index, receipt.clump.last_index) == (641, 640 + moved)
    assert receipt.clump.bytes_moved == moved * 128
    assert receipt.outputs == tuple(moves.receipt.output for moves in read_moves(log))
    assert receipt.fingerprint_before == receipt.fingerprint_after != ""
    assert (len(lease.progress) > 2, lease.progress[-1]) == (True, 99), "also while it copies"
    assert lease.progress == sorted(lease.progress)
    assert parse_report(report.to_json()).receipt == receipt


def test_a_retry_goes_on_and_its_receipt_has_everything(log: Path, engine: ThreadEngine, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(log, tmp_path / "whole"))
    expected = run(spec(whole), engine).receipt
    before = live_payloads(log)
    lease = FakeLease()
    # The last checks are those before each of the five commit points.
    lease.lose_at = _checks(log, engine, tmp_path) - 2
    with pytest.raises(LeaseLostError):
        run(spec(log), engine, lease=lease)
    assert 0 < len(read_moves(log)) < 5
    assert leftovers(log) == []
    fence.claim(log, job="job-1", token=2, holder="test")
    report = run(spec(log), engine, token=2)
    assert under_the_maps(log, before) == before
    assert report.receipt is not None
    assert expected is not None
    assert report.receipt.clump == expected.clump
    assert report.receipt.outputs == expected.outputs
    # A third attempt, after a report that was lost, finds nothing left to do and says the same.
    fence.claim(log, job="job-1", token=3, holder="test")
    again = run(spec(log), engine, token=3)
    assert again.outcome is ReportOutcome.SUCCEEDED
    assert again.receipt is not None
    assert again.receipt.clump == expected.clump


def _checks(log: Path, engine: ThreadEngine, tmp_path: Path) -> int:
    """How often an undisturbed run asks for its lease from the last copy on."""
    copy, lease = Path(shutil.copytree(log, tmp_path / "counted")), FakeLease()
    run(spec(copy), engine, lease=lease)
    return lease.checks


def test_the_budget_holds_over_all_attempts(log: Path, engine: ThreadEngine) -> None:
    job = spec(log, max_bytes=50 * 128)
    assert run(job, engine).receipt is not None
    fence.claim(log, job="job-1", token=2, holder="test")
    report = run(job, engine, token=2)
    assert report.receipt is not None
    assert report.receipt.clump is not None
    assert report.receipt.clump.entries_moved == 50


def test_nothing_sparse_enough_is_a_success_that_says_so(log: Path, engine: ThreadEngine) -> None:
    report = run(spec(log, min_ranges=1000), engine)
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "nothing is sparse enough to be re-written")
    assert report.receipt is not None
    assert report.receipt.clump is not None
    assert (report.receipt.clump.ranges_before, report.receipt.clump.ranges_after) == (192, 192)
    assert report.receipt.clump.first_index is None
    assert read_moves(log) == ()


def test_a_damaged_entry_is_named_and_nothing_is_committed(log: Path, engine: ThreadEngine) -> None:
    damaged = corrupt_entry(log, segment=5, record=2)
    identity, before = identity_of(log / damaged.file), open_log(log).live
    report = run(spec(log), engine)
    assert (report.outcome, report.reason) == (ReportOutcome.FAILED, JobReason.SOURCE_CORRUPT)
    (skipped,) = report.skipped
    assert (skipped.source, skipped.index, skipped.identity) == (damaged.file, damaged.index, identity)
    assert open_log(log).live == before
    assert leftovers(log) == []


def test_a_log_that_may_not_be_appended_to(log: Path, engine: ThreadEngine) -> None:
    (log.parent / "0000000000000001.wal").write_bytes(log.name.encode())
    report = run(spec(log), engine)
    assert (report.outcome, report.reason, report.charged) == (
        ReportOutcome.FAILED,
        SegmentReason.LOG_NOT_APPENDABLE,
        True,
    )
    assert "0000000000000001.wal" in report.message
    assert report.skipped == ()


def test_an_older_snapshot_than_the_jobs_is_not_touched(log: Path, engine: ThreadEngine) -> None:
    report = run(spec(log, snapshot_index=10_000), engine)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    assert read_moves(log) == ()


def test_a_fenced_attempt_changes_nothing(log: Path, engine: ThreadEngine) -> None:
    fence.claim(log, job="job-1", token=2, holder="successor")
    report = run(spec(log), engine, token=1)
    assert (report.reason, report.charged) == (JobReason.STALE_TOKEN, False)
    assert read_moves(log) == ()


def test_an_attempt_that_is_replaced_while_it_commits(log: Path, engine: ThreadEngine) -> None:
    """As if its lock had been lost for a moment: what is past its commit point stays, and the report has it."""

    class Replaced(FakeLease):
        def ensure_held(self) -> None:
            super().ensure_held()
            if (log / "0000000000000012.segment").exists():
                record = fence.with_claim(fence.read(log), job="job-1", token=2, holder="successor", now=1.0)
                fence.write(log, record)

    before = live_payloads(log)
    report = run(spec(log), engine, lease=Replaced())
    assert report.reason == JobReason.STALE_TOKEN
    assert report.receipt is not None
    assert len(report.receipt.outputs) == len(read_moves(log)) == 2
    assert under_the_maps(log, before) == before
    assert leftovers(log) == []


# A job on a log whose owner follows compactions and goes on writing, taking snapshots and deleting beside it.


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
        log.append(entries(self.last + 1, self.last + 4)).result(PATIENCE_SECONDS)
        self.last += 4
        if self.checks == self.deletes_at:
            log.snapshot(48, 1, b"\x83j", LiveSet.parse("9,20,33")).result(PATIENCE_SECONDS)
            self.system._snapshots.submit(int).result(PATIENCE_SECONDS)
        self.system.roll().result(PATIENCE_SECONDS)
        assert self.system.drain(PATIENCE_SECONDS)


def test_a_job_of_the_operator_and_the_owners_own_work_go_together(tmp_path: Path, engine: ThreadEngine) -> None:
    limits = SystemLimits(segments=NewSegments(max_count=8), compaction=OwnerCompaction(phase_one=False))
    with LogSystem(tmp_path / "system", limits=limits) as system:
        log = system.open_log("a")
        log.append(entries(1, 60)).result(PATIENCE_SECONDS)
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)
        log.snapshot(40, 1, b"\x83j", LiveSet.parse("9,17,20,33")).result(PATIENCE_SECONDS)
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
