"""What may stand in a fence file: names, tokens and times that could harm are refused, in reading and in writing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.commit.records import (
    FenceRecord,
    JobClaim,
    SegmentTombstone,
    TombstoneKind,
    UnreferencedReason,
)
from compaction.segments.errors import CorruptFenceError, InvalidGroupError, SegmentLogError, UnwritableFenceError
from compaction.segments.format.names import job_key
from compaction.segments.model import FileIdentity

A, B, C = (f"{n:016d}.segment" for n in (1, 2, 3))
GROUP = f"{A[:16]}-{C[:16]}"
RECEIPT: dict[str, Any] = {
    "job": "job",
    "token": 3,
    "holder": "h",
    "group": GROUP,
    "sources": [A, C],
    "output": A,
    "linked": [B, C],
    "entries": 1,
    "live_bytes": 1,
    "bytes_before": 2,
    "bytes_after": 1,
    "fingerprint_before": "f",
    "fingerprint_after": "f",
    "seconds": 0.5,
    "committed_at": 1000.0,
}
IDENTITY = {"device": 1, "inode": 2, "size": 3, "mtime_ns": 4}
PENDING: dict[str, Any] = {
    "group": GROUP,
    "partial": f"{GROUP}.job.3.partial",
    "identity": IDENTITY,
    "receipt": RECEIPT,
}
TOMBSTONE: dict[str, Any] = {"name": B, "kind": "Linked", "since": 0.0}


def put(log: Path, **fields: Any) -> None:
    (log / fence.FENCE_FILE).write_text(json.dumps({"version": 1, **fields}))


def test_a_whole_record_is_read(log: Path) -> None:
    put(
        log,
        floor=2**31 - 1,
        jobs={"job": {"token": 3, "holder": "h", "claimed_at": 1.0, "unreferenced": [TOMBSTONE]}},
        receipts=[RECEIPT],
        intents=[PENDING],
        tombstones=[TOMBSTONE],
    )
    assert fence.read(log).intents


@pytest.mark.parametrize(
    "fields",
    [
        *({"tombstones": [TOMBSTONE | {"name": n}]} for n in ("../other/link", "/etc/link", "x", "", B + "\n", "..")),
        *({"tombstones": [TOMBSTONE | {"since": t}]} for t in (math.inf, -math.inf, math.nan, 1e300)),
        {"tombstones": [TOMBSTONE | {"token": -1}]},
        {"tombstones": [TOMBSTONE | {"identity": IDENTITY | {"inode": 2**64}}]},
        {"jobs": {"j": {"token": 1, "holder": "h", "claimed_at": 1, "unreferenced": [TOMBSTONE | {"name": "../x"}]}}},
        {"jobs": {"j": {"token": 0, "holder": "h", "claimed_at": 1}}},
        {"jobs": {"j": {"token": 2**31, "holder": "h", "claimed_at": 1}}},
        {"jobs": {"j": {"token": 1, "holder": "h", "claimed_at": math.nan}}},
        {"jobs": {"": {"token": 1, "holder": "h", "claimed_at": 1}}},
        {"floor": -5},
        {"floor": 2**31},
        {"floor": 10**4000},
        *(
            {"receipts": [RECEIPT | change]}
            for change in (
                {"group": "../x/y"},
                {"group": f"{C[:16]}-{A[:16]}", "sources": [C, A], "output": C},
                {"group": f"{A[:16]}-{A[:16]}", "sources": [A, A], "linked": [A]},
                {"sources": [A, B]},
                {"output": C},
                {"output": "../x"},
                {"linked": ["../../etc/passwd"]},
                {"linked": [A]},
                {"linked": ["0000000000000009.segment"]},
                {"token": 0},
                {"seconds": math.inf},
                {"committed_at": math.nan},
            )
        ),
        *(
            {"intents": [PENDING | change]}
            for change in (
                {"group": "../x/y"},
                {"group": A[:16]},
                {"partial": "q"},
                {"partial": "../" + PENDING["partial"]},
                {"partial": f"{A[:16]}.job.3.partial"},
                {"partial": f"{GROUP}.other.3.partial"},
                {"partial": f"{GROUP}.job.4.partial"},
                {"receipt": RECEIPT | {"linked": ["../x"]}},
                {"identity": IDENTITY | {"size": -1}},
            )
        ),
        {"intents": [PENDING, PENDING]},
    ],
    ids=lambda fields: str(fields)[:120],
)
def test_a_value_that_could_harm_is_refused(log: Path, fields: dict[str, Any]) -> None:
    put(log, **fields)
    with pytest.raises(CorruptFenceError, match=r"compaction\.fence: not a fence record: ") as caught:
        fence.read(log)
    assert len(str(caught.value)) < 1000


def test_nothing_outside_the_log_is_ever_deleted(log: Path, tmp_path: Path) -> None:
    """A hostile fence: its tombstones and its intent point elsewhere."""
    outside = tmp_path / "other"
    outside.mkdir()
    (outside / "link").symlink_to("/etc/hostname")
    (outside / "y.compacting").write_text("precious")
    hostile: list[dict[str, Any]] = [
        {"tombstones": [TOMBSTONE | {"name": "../other/link"}]},
        {"tombstones": [TOMBSTONE | {"name": str(outside / "link")}]},
        {"intents": [PENDING | {"group": "../other/y", "receipt": RECEIPT | {"group": "../other/y"}}]},
    ]
    for fields in hostile:
        put(log, **fields)
        for change in (lambda: sweep.sweep(log, grace_seconds=0), lambda: recovery.recover(log)):
            with pytest.raises(CorruptFenceError):
                change()
    assert (outside / "link").is_symlink()
    assert (outside / "y.compacting").read_text() == "precious"


def test_what_could_not_be_read_back_is_never_written(log: Path) -> None:
    fence.claim(log, job="good", token=1, holder="h", now=1.0)
    before = (log / fence.FENCE_FILE).read_bytes()
    for now in (math.nan, math.inf):
        with pytest.raises(UnwritableFenceError, match="finite"):
            fence.claim(log, job="job", token=1, holder="h", now=now)
    with pytest.raises(UnwritableFenceError):
        fence.claim(log, job="job", token=1, holder="\udcff", now=1.0)
    with pytest.raises(InvalidGroupError, match="2147483647"):
        fence.claim(log, job="job", token=2**31, holder="h")
    assert (log / fence.FENCE_FILE).read_bytes() == before
    assert not (log / fence.TEMPORARY_FILE).exists()


def test_a_job_name_that_is_no_text_is_refused(log: Path) -> None:
    with pytest.raises(InvalidGroupError, match="ud800"):
        job_key("\ud800")
    with pytest.raises(InvalidGroupError):
        fence.claim(log, job="job-\udcff", token=1, holder="h")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_a_fence_that_is_no_file_is_refused_without_waiting_or_leaking(log: Path, make: Callable[[Path], None]) -> None:
    make(log / fence.FENCE_FILE)
    writer = os.open(log / fence.FENCE_FILE, os.O_RDONLY | os.O_NONBLOCK)
    count = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CorruptFenceError, match="regular file"):
            fence.read(log)
    assert len(os.listdir("/proc/self/fd")) == count
    os.close(writer)


def mark(number: int, job: str = "job") -> SegmentTombstone:
    return SegmentTombstone(
        name=f"{number:016d}.segment",
        kind=TombstoneKind.UNREFERENCED,
        since=1000.0,
        job=job,
        token=1,
        bytes=64_000_000,
        reason=UnreferencedReason.NO_LIVE_INDEX,
        identity=FileIdentity(device=1, inode=number, size=64_000_000, mtime_ns=1),
    )


def test_a_record_that_grew_too_large_is_refused_before_the_old_one_goes(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "MAX_FENCE_BYTES", 100_000)
    monkeypatch.setattr(fence, "SPARE_BYTES", 10_000)
    fence.claim(log, job="job", token=1, holder="h")
    before = (log / fence.FENCE_FILE).read_bytes()
    grown = replace(fence.read(log), tombstones=tuple(mark(n) for n in range(1000)))
    with pytest.raises(UnwritableFenceError, match="larger than"):
        fence.write(log, grown)
    assert (log / fence.FENCE_FILE).read_bytes() == before
    assert not (log / fence.TEMPORARY_FILE).exists()
    assert issubclass(UnwritableFenceError, SegmentLogError)


def test_a_record_over_the_limit_may_always_shrink(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a sweep could not give back the room that its tombstones take."""
    marks = tuple(mark(n) for n in range(500))
    fence.write(log, FenceRecord(tombstones=marks))
    monkeypatch.setattr(fence, "MAX_FENCE_BYTES", (log / fence.FENCE_FILE).stat().st_size)
    monkeypatch.setattr(fence, "SPARE_BYTES", 50_000)
    fence.write(log, FenceRecord(tombstones=marks[1:]))
    with pytest.raises(UnwritableFenceError):
        fence.write(log, FenceRecord(tombstones=marks))


def test_retired_jobs_keep_their_marks_only_for_a_while() -> None:
    record = FenceRecord()
    for number in range(300):
        job = f"job-{number:03d}"
        record = fence.with_claim(record, job=job, token=number + 1, holder="x", now=float(number))
        marks = tuple(mark(n, job) for n in range(10))
        record = replace(record, jobs=record.jobs | {job: replace(record.jobs[job], unreferenced=marks)})
        record = fence.retired(record, job)
    kept = [name for name, claim in record.jobs.items() if claim.unreferenced]
    assert 1 <= len(kept) <= fence.KEPT_MARKED
    assert "job-299" in kept
    assert "job-200" not in kept
    assert record.jobs["job-200"].retired


def test_claims_of_runs_that_were_killed_do_not_pile_up() -> None:
    """Nobody retires them: beyond the newest ones, and after a week, they count as closed; their tokens stay used."""
    record = FenceRecord()
    for number in range(fence.KEPT_OPEN + 50):
        record = fence.with_claim(record, job=f"cli-{number}", token=7, holder="cli", now=1000.0 + number)
    opened = [name for name in record.jobs if record.claimed(name) is not None]
    assert len(opened) == fence.KEPT_OPEN + 1
    assert record.claimed("cli-0") is None
    assert record.high_water("cli-0") == 7
    late = fence.with_claim(record, job="new", token=1, holder="cli", now=1e6 + fence.OPEN_SECONDS)
    assert [name for name in late.jobs if late.claimed(name) is not None] == ["new"]


def test_a_fence_full_of_killed_runs_shrinks() -> None:
    jobs = {f"cli-{i:010x}": JobClaim(token=1, holder="cli", claimed_at=0.0) for i in range(5000)}
    record = fence.retired(FenceRecord(jobs=jobs), "cli-0000000000")
    assert len(record.jobs) <= fence.KEPT_JOBS + fence.KEPT_OPEN
    assert record.floor == 1
