"""One SegmentRewrite job on real directories, tasks run by threads: what is committed, skipped, refused, reported."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ReportOutcome, parse_report
from compaction.api.policy.segment_logs import Ownership, SegmentGroup
from compaction.errors import InvalidAssignmentError
from compaction.segments.adapter import identity_of
from compaction.segments.commit import fence, records
from compaction.segments.commit.records import TombstoneKind
from compaction.segments.directory import lock
from compaction.segments.errors import MissingSegmentHeaderError
from compaction.segments.format.segment_file import read_segment
from compaction.segments.generate import Pattern, corrupt_entry
from compaction.segments.model import FileIdentity, segment_name, segment_number
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import read_batches
from compaction.segments.reading.view import open_log
from compaction.segments.reasons import SegmentReason
from compaction.segments.rewriting.rewriter import SegmentRewriter
from compaction.segments.rewriting.task import failure_of
from compaction.segments.snapshot.directories import newest_snapshot, write_snapshot
from compaction.worker.attempt import budget_of
from compaction.worker.errors import JobStoppedError, LeaseLostError, TaskFailedError
from support.clocks import PATIENCE_SECONDS
from support.processes.worker_ports import FakeLease, ThreadEngine, assignment, job_spec
from support.segments.ra_owner import killed, stopped
from support.segments.segment_logs import content, leftovers, regular

MakeLog = Callable[..., Path]
SMALL = SegmentLimits(max_entries=64)


def run(
    directory: Path,
    engine: ThreadEngine,
    *,
    token: int = 1,
    lease: FakeLease | None = None,
    spec: CompactionJobSpec | None = None,
) -> JobReport:
    spec = spec or job_spec(directory, limits=SMALL)
    rewriter = SegmentRewriter(engine, holder="worker-1")
    return rewriter.run(assignment(spec, token=token), lease or FakeLease(token=token))


@pytest.mark.parametrize("pattern", list(Pattern))
def test_job_keeps_what_is_live_and_gives_back_the_rest(
    make_log: MakeLog, engine: ThreadEngine, pattern: Pattern
) -> None:
    directory = make_log(pattern=pattern, segments=16)
    before, size = content(directory), sum(regular(directory).values())
    spec = job_spec(directory, limits=SMALL)
    planned = spec.sources.segment_log
    assert planned is not None
    lease = FakeLease()
    report = run(directory, engine, lease=lease, spec=spec)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert content(directory) == before
    assert leftovers(directory) == []
    receipt = report.receipt
    assert receipt is not None
    assert receipt.groups == receipt.groups_committed == len(planned.groups)
    assert receipt.obsolete == planned.obsolete
    assert receipt.fingerprint_before == receipt.fingerprint_after != ""
    assert receipt.bytes_before - receipt.bytes_after == receipt.bytes_reclaimed > 0
    awaiting = sum((directory / name).stat().st_size for name in receipt.obsolete)
    assert sum(regular(directory).values()) == size - receipt.bytes_reclaimed + awaiting
    assert receipt.worker == "worker-1"
    assert lease.progress == sorted(lease.progress)


def test_receipt_survives_the_annotation(make_log: MakeLog, engine: ThreadEngine) -> None:
    report = run(make_log(), engine)
    parsed = parse_report(report.to_json())
    assert parsed.receipt == report.receipt
    assert (parsed.token, parsed.outcome, parsed.reason) == (1, ReportOutcome.SUCCEEDED, "Completed")


@dataclass
class Server(FakeLease):
    """A Ra server that starts right before the commit whose check of the lease is the `starts_at`th."""

    data: Path = Path()
    starts_at: int = 0

    def ensure_held(self) -> None:
        super().ensure_held()
        if self.checks == self.starts_at:
            killed(self.data)


@pytest.mark.parametrize("starts_at", [0, 1, 2])
def test_an_owner_that_runs_ends_the_job_before_its_next_commit(
    make_log: MakeLog, engine: ThreadEngine, starts_at: int
) -> None:
    """At the start (0, 1), or while the groups are rewritten (2): uncharged, and nothing is left behind."""
    directory = make_log()
    before, files = content(directory), regular(directory)
    stopped(directory.parent)
    if not starts_at:
        killed(directory.parent)
    lease = Server(data=directory.parent, starts_at=starts_at)
    report = run(directory, engine, lease=lease)
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, SegmentReason.OWNER_RUNNING, False)
    assert "meta.dets was not closed" in report.message
    assert report.receipt is None or not report.receipt.groups_committed
    assert (content(directory), regular(directory), leftovers(directory)) == (before, files, [])
    fence.claim(directory, job="job-1", token=2, holder="test")
    told = job_spec(directory, limits=SMALL)
    parameters = told.parameters.model_copy(
        update={"segment_log": told.segment_log_parameters.model_copy(update={"ownership": Ownership.STOPPED})}
    )
    report = run(directory, engine, token=2, spec=told.model_copy(update={"parameters": parameters}))
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message


def test_corrupt_entry_fails_its_group_only(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    groups = spec.sources.segment_log.groups if spec.sources.segment_log else ()
    victim = groups[1].segments[0]
    before = content(directory)
    bad = _corrupt_live_entry(directory, victim)
    damaged = identity_of(directory / victim)
    report = run(directory, engine, spec=spec)
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.SOURCE_CORRUPT, True)
    (skipped,) = report.skipped
    assert (skipped.source, skipped.index) == (victim, bad.index)
    assert skipped.identity == damaged, "in the words of a reading, so that a repair is noticed"
    assert skipped.offset is not None
    assert skipped.offset <= bad.offset < skipped.offset + 128, "the entry's beginning; the damaged byte is inside"
    assert str(bad.index) in report.message
    assert victim in report.message
    assert report.receipt is not None
    assert report.receipt.groups_committed == len(groups) - 1
    assert leftovers(directory) == []
    _assert_equal_but(directory, before, {bad.index})


def test_corrupt_header_names_the_segment(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    (directory / "0000000000000003.segment").write_bytes(b"RASX\x00\x02")
    damaged = identity_of(directory / "0000000000000003.segment")
    report = run(directory, engine, spec=spec)
    assert report.reason == JobReason.SOURCE_CORRUPT
    assert (report.skipped[0].source, report.skipped[0].identity) == ("0000000000000003.segment", damaged)


def test_the_owners_next_segment_is_no_damage(make_log: MakeLog, engine: ThreadEngine) -> None:
    """Created, its header not yet written: the normal instant between two steps of the owner."""
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    newest = max(regular(directory))
    (directory / segment_name(segment_number(newest) + 1)).touch()
    report = run(directory, engine, spec=spec)
    assert (report.outcome, report.skipped) == (ReportOutcome.SUCCEEDED, ())


def test_a_headerless_file_above_the_sources_is_not_held_against_them() -> None:
    """Only what the job was to read can be damaged by its fault; one above is looked at again with the next plan."""
    sources = (segment_name(1), segment_name(2))
    above = failure_of(MissingSegmentHeaderError(f"/log/{segment_name(7)}"), sources)
    assert (above.reason, above.segment) == (JobReason.SOURCES_CHANGED, None)
    source = failure_of(MissingSegmentHeaderError(f"/log/{segment_name(2)}"), sources)
    assert (source.reason, source.segment) == (JobReason.SOURCE_CORRUPT, segment_name(2))


def test_sources_replaced_since_the_plan(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    other = job_spec(directory, limits=SMALL)
    fence.claim(directory, job="job-2", token=1, holder="test")
    SegmentRewriter(engine, holder="w").run(assignment(other, job="job-2"), FakeLease())
    names = sorted(os.listdir(directory))
    report = run(directory, engine, spec=spec)
    assert (report.outcome, report.reason) == (ReportOutcome.SKIPPED, JobReason.SOURCES_CHANGED)
    assert report.skipped == (), "nothing is damaged: nothing is to be set aside"
    assert report.receipt is None or report.receipt.groups_committed == 0
    assert sorted(os.listdir(directory)) == names


def test_snapshot_older_than_the_plan_commits_nothing(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    snapshot = newest_snapshot(directory)
    assert snapshot is not None
    report = run(directory, engine, spec=job_spec(directory, limits=SMALL, snapshot_index=snapshot.index + 1))
    assert report.reason == JobReason.SOURCES_CHANGED
    assert not fence.read(directory).receipts


def test_newer_snapshot_drops_what_died_meanwhile(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    snapshot = newest_snapshot(directory)
    assert snapshot is not None
    assert snapshot.live is not None
    still_live = [index for index in snapshot.live if index % 2]
    write_snapshot(
        directory, index=snapshot.index, term=snapshot.term + 1, live=type(snapshot.live).from_indexes(still_live)
    )
    report = run(directory, engine, spec=spec)
    assert report.outcome is ReportOutcome.SUCCEEDED, report.message
    assert set(content(directory)) >= set(still_live)


def test_missing_indexes_are_refused(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    spec = job_spec(directory, limits=SMALL)
    for path in directory.glob("snapshots/*/indexes"):
        path.unlink()
    report = run(directory, engine, spec=spec)
    assert report.reason == SegmentReason.LIVE_SET_UNKNOWN
    assert not fence.read(directory).receipts


def test_attempt_fenced_off_half_way_commits_no_more(make_log: MakeLog) -> None:
    """The larger token arrives after the first commit; the second group was rewritten already, and is thrown away."""
    directory = make_log()

    class Interrupting(ThreadEngine):
        done = 0

        def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
            self.done += 1
            if self.done == 2:
                fence.claim(directory, job="job-1", token=2, holder="test")
            return super().submit(work, task, tag=tag)

    engine = Interrupting(parallelism=1)
    before = content(directory)
    report = run(directory, engine)
    engine.close()
    assert (report.reason, report.charged) == (JobReason.STALE_TOKEN, False)
    assert len(fence.read(directory).receipts) == 1
    assert leftovers(directory) == []
    assert content(directory) == before


@pytest.mark.parametrize("check", [1, 2, 3, 4])
def test_lease_lost_before_a_commit_leaves_nothing_visible(make_log: MakeLog, engine: ThreadEngine, check: int) -> None:
    directory = make_log()
    before = content(directory)
    lease = FakeLease(lose_at=check)
    with pytest.raises(LeaseLostError):
        run(directory, engine, lease=lease)
    receipts = len(fence.read(directory).receipts)
    assert receipts <= max(0, check - 2), "a commit is preceded by a check that held"
    assert leftovers(directory) == []
    assert content(directory) == before


def test_stopped_worker_cancels_its_tasks(make_log: MakeLog) -> None:
    """One task is done and about to be committed, the other still runs."""
    directory = make_log()
    cancelled = threading.Event()

    class OneStaysBehind(ThreadEngine):
        def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
            def until_cancelled(task: Any) -> Any:
                cancelled.wait(PATIENCE_SECONDS)
                return work(task)

            return super().submit(until_cancelled if self._futures else work, task, tag=tag)

        def cancel(self, tag: str) -> None:
            cancelled.set()
            super().cancel(tag)

    class Stopping(FakeLease):
        def ensure_held(self) -> None:
            self.stopped = self.checks >= 2
            super().ensure_held()

    engine = OneStaysBehind()
    with pytest.raises(JobStoppedError):
        run(directory, engine, lease=Stopping())
    engine.close()
    assert engine.cancelled == ["job-1.1"]
    assert leftovers(directory) == []


def test_log_locked_by_another_process(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.hold(directory, holder="somebody", job="else"):
            held.set()
            release.wait(PATIENCE_SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE_SECONDS)
    try:
        rewriter = SegmentRewriter(engine, holder="w", lock_timeout=0.2)
        report = rewriter.run(assignment(job_spec(directory, limits=SMALL)), FakeLease())
    finally:
        release.set()
        holder.join()
    assert (report.reason, report.charged) == (SegmentReason.STORE_LOCKED, False)
    assert "somebody" in report.message


def test_log_that_is_gone(tmp_path: Path, make_log: MakeLog, engine: ThreadEngine) -> None:
    spec = job_spec(make_log(), limits=SMALL, path=str(tmp_path / "nowhere"))
    report = run(tmp_path, engine, spec=spec)
    assert report.reason == JobReason.STORE_UNREADABLE
    assert "nowhere" in report.message


def test_job_that_names_a_segment_twice_is_invalid(make_log: MakeLog, engine: ThreadEngine) -> None:
    directory = make_log()
    twice = tuple(SegmentGroup(segments=("0000000000000001.segment",)) for _ in range(2))
    with pytest.raises(InvalidAssignmentError, match="named twice"):
        run(directory, engine, spec=job_spec(directory, limits=SMALL, groups=twice, obsolete=()))


def test_defect_in_a_task_removes_the_partial_files(make_log: MakeLog) -> None:
    directory = make_log()

    class Broken(ThreadEngine):
        def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
            def explode(task: Any) -> Any:
                work(task)
                raise TaskFailedError("worker process died")

            return super().submit(explode, task, tag=tag)

    engine = Broken()
    with pytest.raises(TaskFailedError):
        run(directory, engine)
    engine.close()
    assert leftovers(directory) == []


def test_every_task_pays_from_the_budget_of_the_worker(make_log: MakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = ThreadEngine(parallelism=2), list[int]()

    def wait_for(secret: bytes, count: int) -> float:
        asked.append(count)
        return 0.0

    monkeypatch.setattr(budget_of(engine), "wait_for", wait_for)
    directory = make_log()
    given = assignment(job_spec(directory, limits=SMALL))
    report = SegmentRewriter(engine, holder="w").run(given, FakeLease(bytes_per_second=20))
    engine.close()
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert report.receipt is not None
    assert report.receipt.groups > 2
    assert sum(asked) > report.receipt.bytes_after


def test_progress_grows_while_a_group_is_copied(
    make_log: MakeLog, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction.worker.tasks.TELL_SECONDS", 0.0)
    directory = make_log()
    lease = FakeLease()
    report = SegmentRewriter(engine, holder="w").run(assignment(job_spec(directory)), lease)
    assert report.outcome is ReportOutcome.SUCCEEDED
    assert report.receipt is not None
    assert len({percent for percent in lease.progress if 0 < percent < 99}) > 2 * report.receipt.groups
    assert lease.progress == sorted(lease.progress)


def test_report_is_small_and_plain(make_log: MakeLog, engine: ThreadEngine) -> None:
    wire = json.loads(run(make_log(), engine).to_json())
    assert wire["receipt"]["groupsCommitted"] == wire["receipt"]["groups"]
    assert wire["charged"] is True
    assert wire["skipped"] == []


def _corrupt_live_entry(directory: Path, segment: str) -> Any:
    """Damage the payload of a record that the rewrite must copy."""
    snapshot = newest_snapshot(directory)
    assert snapshot is not None
    assert snapshot.live is not None
    index = read_segment(directory / segment)
    record = next(i for i, value in enumerate(index.idx.tolist()) if value in snapshot.live)
    return corrupt_entry(directory, segment=segment, record=record)


def _assert_equal_but(directory: Path, before: dict[int, Any], missing: set[int]) -> None:
    """All live entries but the damaged ones read as before."""
    found = set()
    for batch in read_batches(open_log(directory), live_only=True, on_corrupt=lambda error: None):
        found |= set(batch.segment.idx[batch.rows].tolist())
    assert found == set(before) - missing


def test_the_grace_of_replaced_names_begins_when_they_are_replaced(
    make_log: MakeLog, engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the commit began: the process may have been stopped in between, for longer than the grace."""
    directory = make_log(segments=16)
    replaced: list[float] = []
    put_symlink = records.put_symlink

    def slowly(log: Path, name: str, output: str, *, expected: FileIdentity) -> bool:
        time.sleep(0.01)
        done = put_symlink(log, name, output, expected=expected)
        # By the clock the grace is measured with: a file system's, which is coarser than a process's.
        replaced.append((log / name).lstat().st_mtime)
        return done

    monkeypatch.setattr(records, "put_symlink", slowly)
    assert run(directory, engine).outcome is ReportOutcome.SUCCEEDED
    linked = [t for t in fence.read(directory).tombstones if t.kind is TombstoneKind.LINKED]
    assert len(linked) == len(replaced) > 0
    assert sorted(t.since for t in linked)[-1] >= replaced[-1]
    assert min(t.since for t in linked) >= replaced[0]
