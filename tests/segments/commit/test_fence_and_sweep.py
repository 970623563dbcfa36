"""Claims, receipts, tombstones; and what the sweeper deletes, when, and what it never touches."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import StaleTokenError
from compaction.segments import sweep
from compaction.segments.commit import commit, fence
from compaction.segments.commit.records import FenceRecord
from compaction.segments.errors import (
    CorruptFenceError,
    InvalidGroupError,
    LockLostError,
    LogNotWritableError,
    NotALogDirectoryError,
    SourcesChangedError,
)
from compaction.segments.format.names import group_key, job_key, parse_partial, partial_name
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.scan.sense import SenseSettings, sense_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.segments.segment_logs import content, leftovers, regular


def seg(number: int) -> str:
    return f"{number:016d}.segment"


def compact(log: Path, job: str = "job", token: int = 1, now: float | None = 1000.0) -> None:
    state = open_log(log)
    assert state.live is not None
    plan = plan_log(state, SegmentLimits())
    fence.claim(log, job=job, token=token, holder="test", now=now)
    for group in plan.groups:
        done = kernel.rewrite_group(
            log, sources=group.sources, live=state.live, limits=SegmentLimits(), job=job, token=token
        )
        commit.commit_group(log, job=job, token=token, group=done, holder="test", now=now)
    names = [u.name for u in plan.unreferenced]
    commit.commit_unreferenced(log, job=job, token=token, names=names, holder="test", now=now)


@pytest.mark.parametrize("now", [1000.0, 1599.0, 1601.0])
def test_the_outlook_is_what_the_sweep_does_and_changes_nothing(log: Path, now: float) -> None:
    compact(log)
    (log / seg(99)).symlink_to(seg(2))
    (log / partial_name(group_key((seg(4),)), job="gone", token=1)).touch()
    before = sorted(log.rglob("*")), fence.read(log)
    outlook = sweep.outlook(log, now=now, grace_seconds=600)
    assert (sorted(log.rglob("*")), fence.read(log)) == before
    done = sweep.sweep(log, now=now, grace_seconds=600)
    assert (outlook.delete, outlook.blocked, outlook.waits) == (
        done.deleted,
        done.blocked,
        tuple(sorted(fence.read(log).tombstones, key=lambda tombstone: tombstone.name)),
    )
    assert len(outlook.waits) == done.waiting > 0
    assert (len(outlook.delete) > 1) == (now > 1600)


def test_the_outlook_names_what_would_be_kept(log: Path) -> None:
    compact(log)
    next(log.glob("snapshots/*/indexes")).unlink()
    outlook = sweep.outlook(log, now=5000.0, grace_seconds=600)
    assert [item.name for item in outlook.blocked] == [seg(1)]
    assert outlook.blocked == sweep.sweep(log, now=5000.0, grace_seconds=600).blocked
    with pytest.raises(NotALogDirectoryError):
        sweep.outlook(log.parent, now=5000.0, grace_seconds=600)


def test_tokens_only_grow(log: Path) -> None:
    assert fence.high_water(log, "a") == 0
    fence.claim(log, job="a", token=3, holder="x")
    for token in (1, 3):
        with pytest.raises(StaleTokenError):
            fence.claim(log, job="a", token=token, holder="x")
    fence.claim(log, job="b", token=1, holder="x")
    fence.retire(log, "a")
    fence.retire(log, "a")
    fence.retire(log, "unknown")
    assert fence.high_water(log, "a") == 3
    with pytest.raises(StaleTokenError):
        fence.claim(log, job="a", token=3, holder="x")
    fence.claim(log, job="a", token=4, holder="x")
    assert fence.read(log).claimed("a") == 4
    with pytest.raises(InvalidGroupError):
        fence.claim(log, job="c", token=0, holder="x")


def test_a_commit_with_a_token_that_nobody_was_given_is_refused_also_a_larger_one(log: Path) -> None:
    before, state = content(log), open_log(log)
    assert state.live is not None
    names = sorted(regular(log))
    fence.claim(log, job="job", token=4, holder="test")
    for token in (3, 5):
        for group in plan_log(state, SegmentLimits()).groups:
            done = kernel.rewrite_group(
                log, sources=group.sources, live=state.live, limits=SegmentLimits(), job="job", token=token
            )
            with pytest.raises(StaleTokenError, match=f"token {token} of job job is stale .token 4 is claimed"):
                commit.commit_group(log, job="job", token=token, group=done, holder="test")
        with pytest.raises(StaleTokenError):
            commit.commit_unreferenced(log, job="job", token=token, names=[seg(1)], holder="test")
    assert (content(log), sorted(regular(log)), leftovers(log)) == (before, names, [])
    assert (fence.high_water(log, "job"), fence.read(log).receipts, fence.read(log).tombstones) == (4, (), ())


def test_history_is_bounded_and_forgotten_jobs_stay_fenced() -> None:
    record = FenceRecord()
    for number in range(fence.KEPT_JOBS + 50):
        job = f"job-{number}"
        record = fence.with_claim(record, job=job, token=number + 1, holder="x", now=float(number))
        record = fence.retired(record, job)
    assert len(record.jobs) == fence.KEPT_JOBS
    assert record.floor == 50
    assert record.high_water("job-0") == record.high_water("never-seen") == 50


def test_a_job_without_a_coordinator_claims_what_no_other_job_can_outdate(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job that is forgotten raises the floor of all; none may come between asking for a token and claiming it."""
    monkeypatch.setattr(fence, "KEPT_JOBS", 1)

    def work(worker: int) -> list[int]:
        tokens = []
        for number in range(12):
            job = f"job-{worker}-{number}"
            tokens.append(fence.claim_next(log, job=job, holder="x"))
            fence.check_token(fence.read(log), log, job=job, token=tokens[-1])
            fence.retire(log, job)
        return tokens

    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(work, range(4)))
    assert all(own == sorted(own) for own in tokens), "the floor only rises"
    assert fence.read(log).floor > 0


def test_a_repeated_commit_returns_the_same_receipt(log: Path) -> None:
    compact(log)
    record = fence.read(log)
    (receipt,) = record.receipts
    assert (receipt.output, receipt.linked, receipt.entries) == (seg(2), (seg(3),), 2)
    assert receipt.fingerprint_before == receipt.fingerprint_after
    names = [seg(1)]
    again = commit.commit_unreferenced(log, job="job", token=1, names=names, holder="test", now=2000.0)
    assert [t.since for t in again] == [1000.0]
    sweep.sweep(log, now=5000.0, grace_seconds=0)
    assert commit.commit_unreferenced(log, job="job", token=1, names=names, holder="test") == again


def test_unreferenced_is_checked_again_at_the_commit(log: Path) -> None:
    fence.claim(log, job="job", token=1, holder="x")
    for name in (seg(2), seg(5)):
        with pytest.raises(SourcesChangedError, match=name):
            commit.commit_unreferenced(log, job="job", token=1, names=[seg(1), name], holder="x")
    assert fence.read(log).tombstones == ()


def test_a_dead_segment_that_its_owner_has_deleted_needs_no_mark(log: Path) -> None:
    fence.claim(log, job="job", token=1, holder="x")
    (log / seg(1)).unlink()
    assert commit.commit_unreferenced(log, job="job", token=1, names=[seg(1)], holder="x") == ()
    assert fence.read(log).tombstones == ()
    (log / seg(1)).symlink_to(seg(2))
    with pytest.raises(SourcesChangedError, match=seg(1)):
        commit.commit_unreferenced(log, job="job", token=1, names=[seg(1)], holder="x")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2}', b'{"jobs": {"a": {"token": "x"}}}', b"\xff"])
def test_a_foreign_fence_file_is_named(log: Path, content: bytes) -> None:
    (log / fence.FENCE_FILE).write_bytes(content)
    with pytest.raises(CorruptFenceError, match=r"compaction\.fence"):
        fence.read(log)


def test_a_fence_that_is_a_symlink_is_not_followed(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text(json.dumps({"version": 1}))
    (log / fence.FENCE_FILE).symlink_to(target)
    with pytest.raises(Exception, match=r"compaction\.fence"):
        fence.read(log)


def test_names_are_due_after_the_grace_and_not_before(log: Path) -> None:
    before = content(log)
    compact(log)
    early = sweep.sweep(log, now=1599.0, grace_seconds=600)
    assert (early.deleted, early.waiting, early.next_due) == ((), 2, 1600.0)
    assert (log / seg(3)).is_symlink()
    size = (log / seg(1)).stat().st_size
    late = sweep.sweep(log, now=1600.0, grace_seconds=600)
    assert [(d.name, d.bytes) for d in late.deleted] == [(seg(1), size), (seg(3), 0)]
    assert late.bytes_reclaimed == size
    assert (late.waiting, late.next_due, late.blocked) == (0, None, ())
    assert set(regular(log)) == {seg(2), seg(4), seg(5)}
    assert content(log) == before
    assert fence.read(log).tombstones == ()
    assert sweep.sweep(log, now=9999.0, grace_seconds=0).deleted == ()


@pytest.mark.parametrize(("worker", "sweeper"), [(-3 * 86_400.0, 0.0), (0.0, 3 * 86_400.0)])
def test_the_grace_is_measured_by_the_file_systems_clock(
    log: Path, monkeypatch: pytest.MonkeyPatch, worker: float, sweeper: float
) -> None:
    """Who commits and who sweeps may be machines whose clocks differ by more than the grace."""
    real = time.time
    with monkeypatch.context() as skewed:
        skewed.setattr(time, "time", lambda: real() + worker)
        compact(log, now=None)
    with monkeypatch.context() as skewed:
        skewed.setattr(time, "time", lambda: real() + sweeper)
        early = sweep.sweep(log, grace_seconds=3600)
        assert (early.deleted, early.waiting) == ((), 2)
        assert early.next_due is not None
        assert 3500 < early.next_due - early.now <= 3600
        assert len(sweep.sweep(log, grace_seconds=0).deleted) == 2


def test_a_dead_segment_that_is_needed_again_stays(log: Path) -> None:
    """Cannot happen to an honest owner: what is dead stays dead. The sweeper looks all the same."""
    compact(log)
    write_snapshot(log, index=33, term=1, live=LiveSet.parse("3,9,17,25-32"))
    report = sweep.sweep(log, now=9999.0, grace_seconds=0)
    assert [b.name for b in report.blocked] == [seg(1)]
    assert seg(1) in regular(log)


def test_each_dead_segment_is_looked_at_by_itself(log: Path) -> None:
    """One is needed again, those beside it are not."""
    write_snapshot(log, index=32, term=2, live=LiveSet.parse("25-32"))
    compact(log)
    write_snapshot(log, index=33, term=2, live=LiveSet.parse("11,25-32"))
    report = sweep.sweep(log, now=9999.0, grace_seconds=0)
    assert [b.name for b in report.blocked] == [seg(2)]
    assert [d.name for d in report.deleted] == [seg(1), seg(3)]
    assert seg(2) in regular(log)


def test_nobody_knows_what_is_live_so_nothing_dead_is_deleted(log: Path) -> None:
    compact(log)
    next(log.glob("snapshots/*/indexes")).unlink()
    report = sweep.sweep(log, now=9999.0, grace_seconds=0)
    assert [d.name for d in report.deleted] == [seg(3)]
    assert [b.name for b in report.blocked] == [seg(1)]
    report = sweep.sweep(log, now=9999.0, grace_seconds=0, indexes_missing=IndexesMissing.TREAT_AS_EMPTY)
    assert [d.name for d in report.deleted] == [seg(1)]


def test_a_name_that_became_another_file_is_not_deleted(log: Path) -> None:
    compact(log)
    for number in (1, 3):
        (log / seg(number)).unlink()
        (log / seg(number)).write_bytes((log / seg(4)).read_bytes())
    report = sweep.sweep(log, now=9999.0, grace_seconds=0)
    assert report.deleted == ()
    assert {seg(1), seg(3)} <= set(regular(log))
    assert fence.read(log).tombstones == ()


def test_the_newest_segment_is_never_deleted(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=4) as writer:
        for index in range(1, 9):
            writer.append(index, 1, b"x")
    write_snapshot(directory, index=8, term=1, live=LiveSet.empty())
    compact(directory)
    sweep.sweep(directory, now=9999.0, grace_seconds=0)
    assert set(regular(directory)) == {seg(2)}
    assert plan_log(open_log(directory), SegmentLimits()).debt_segments == 0


def test_foreign_and_dangling_links_get_their_grace_too(log: Path) -> None:
    (log / "0000000000000000.segment").symlink_to("/nowhere/else.segment")
    report = sweep.sweep(log, now=1000.0, grace_seconds=60)
    assert (report.deleted, report.waiting) == ((), 1)
    assert [d.name for d in sweep.sweep(log, now=1060.0, grace_seconds=60).deleted] == ["0000000000000000.segment"]


def test_partials_of_dead_attempts_are_collected_and_living_ones_are_not(log: Path) -> None:
    group = seg(2)[:16]
    files = {t: log / partial_name(group, job="job", token=t) for t in (1, 2, 3)}
    unknown = log / partial_name(group, job="other.job", token=9)
    for file in (*files.values(), unknown):
        file.write_bytes(b"half")
        os.utime(file, (1000, 1000))
    fence.claim(log, job="job", token=2, holder="x")
    report = sweep.sweep(log, now=1001.0, grace_seconds=600, active=frozenset({("job", 3)}))
    assert {d.name for d in report.deleted} == {files[1].name, unknown.name}
    assert report.bytes_reclaimed == 8
    sweep.sweep(log, now=1600.0, grace_seconds=600, active=frozenset({("job", 2)}))
    assert leftovers(log) == [files[2].name]
    sweep.sweep(log, now=1600.0, grace_seconds=600)
    assert leftovers(log) == []


def test_long_and_odd_job_names_make_short_plain_distinct_file_names() -> None:
    odd = ["a/b", "a b", "x" * 253, "x" * 252 + "y", "job.with.dots", "ü"]
    keys = {job_key(job) for job in odd}
    assert len(keys) == len(odd)
    group = "-".join(f"{i:016d}" for i in range(8))
    for job in odd:
        name = partial_name(group, job=job, token=2**63)
        assert len(name.encode()) <= 255
        assert "/" not in name
        parsed = parse_partial(name)
        assert parsed is not None
        assert (parsed.group, parsed.job, parsed.token) == (group, job_key(job), 2**63)


def test_a_directory_that_cannot_be_written_is_a_clear_error() -> None:
    """/sys takes no files from anybody, root included."""
    with pytest.raises(LogNotWritableError, match=r"/sys/kernel/compaction\.lock: cannot be written"):
        fence.claim(Path("/sys/kernel"), job="job", token=1, holder="x")


def test_a_clock_that_was_ahead_at_the_commit_does_not_keep_names_forever(log: Path) -> None:
    """The grace of what is marked in the future begins at the next sweep."""
    compact(log, now=1000.0 + 10 * 365 * 86_400)
    early = sweep.sweep(log, now=1000.0, grace_seconds=600)
    assert (early.deleted, early.waiting, early.next_due) == ((), 2, 1600.0)
    assert {t.since for t in fence.read(log).tombstones} == {1000.0}
    assert sweep.sweep(log, now=1599.0, grace_seconds=600).deleted == ()
    assert {d.name for d in sweep.sweep(log, now=1600.0, grace_seconds=600).deleted} == {seg(1), seg(3)}


def test_what_is_marked_in_the_future_is_swept_soon_to_set_it_right(log: Path) -> None:
    compact(log, now=5000.0)
    debt = sense_log(log, SenseSettings())
    assert debt.sweep_in(5100.0, 600) == 500.0
    assert debt.sweep_in(9000.0, 600) == 0.0
    assert debt.sweep_in(4000.0, 600) == 0.0


def test_a_sweep_that_knows_no_attempts_leaves_fresh_partials_of_claimed_ones(log: Path) -> None:
    """A command by hand cannot know which workers run: a short grace must not cost them their work."""
    group = seg(2)[:16]
    fence.claim(log, job="job", token=2, holder="x")
    mine, older = (log / partial_name(group, job="job", token=t) for t in (2, 1))
    for file in (mine, older):
        file.write_bytes(b"half")
        os.utime(file, (1000, 1000))
    assert [d.name for d in sweep.sweep(log, now=1599.0, grace_seconds=0).deleted] == [older.name]
    assert sweep.sweep(log, now=1700.0, grace_seconds=1000).deleted == ()
    assert [d.name for d in sweep.sweep(log, now=1600.0, grace_seconds=0).deleted] == [mine.name]
    mine.write_bytes(b"half")
    fence.retire(log, "job")
    assert [d.name for d in sweep.sweep(log, grace_seconds=0).deleted] == [mine.name]


def test_adopting_many_links_asks_for_each_tombstone_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compact(log)
    for number in range(100, 120):
        (log / seg(number)).symlink_to(seg(2))
    (log / seg(200)).write_bytes((log / seg(5)).read_bytes())
    monkeypatch.setattr(FenceRecord, "tombstone", None)
    assert sweep.sweep(log, now=1000.0, grace_seconds=600).waiting == 22


def test_a_sweep_that_lost_its_lock_deletes_nothing_more(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compact(log)
    before, judge = sorted(path.name for path in log.iterdir()), sweep.judge

    def judged(*arguments: Any) -> sweep.Verdicts:
        (log / "compaction.lock").unlink()
        return judge(*arguments)

    monkeypatch.setattr(sweep, "judge", judged)
    with pytest.raises(LockLostError):
        sweep.sweep(log, now=9999.0, grace_seconds=0)
    assert sorted(path.name for path in log.iterdir()) == [name for name in before if name != "compaction.lock"]


def test_nothing_is_swept_in_a_directory_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirectoryError):
        sweep.sweep(tmp_path, grace_seconds=0)
    assert list(tmp_path.iterdir()) == []
