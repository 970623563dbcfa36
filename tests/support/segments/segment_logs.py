"""Segment logs for tests: reference directories restored from their manifests, and what is readable in a log."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.cli.commands import group as segments_commands
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.directory.fs import storage_errors
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.memtable import LogEntry, Seq
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.content import LogCut, write_cut
from compaction.segments.system.rules import LogRow, select
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import HEADER, RecordEncoder, WalRecord
from compaction.segments.wal.files import wal_name
from compaction.segments.wal.wal_reader import read_wal
from compaction.segments.writer import NewSegments

VARIED_LIMITS: Final = SegmentLimits(max_entries=64, max_bytes=1_000_000)
Content = dict[int, tuple[int, str]]
"""Index -> (term, sha256 of the payload)."""


def live_set(items: Iterable[int | list[int]]) -> LiveSet:
    """A live set as the manifests write it: integers and [low, high] pairs."""
    return LiveSet.from_ranges((i, i) if isinstance(i, int) else (i[0], i[1]) for i in items)


def varied_log(directory: Path) -> None:
    """Eleven segments: two dead, a group around a dead one and an orphan of an overwrite, two dense ones, a group. That
    is what a plan with `VARIED_LIMITS` finds.
    """
    with LogWriter(directory, max_count=8) as log:
        for index in range(1, 41):
            log.append(index, 1, b"first %d" % index * 3)
        for index in range(30, 75):
            log.append(index, 2, b"second %d" % index * 5)
    live = LiveSet.parse("17,20,30,33,41-48,50,59,60,63")
    write_snapshot(directory, index=69, term=2, live=live)


def append_random_steps(directory: Path, case: Mapping[str, Any], steps: Iterable[tuple[int, int, int]]) -> None:
    """The entries of one round of fixture 06, (first, last, term) by step, with the bytes that its manifest defines."""
    with LogWriter(directory, max_count=case["seg_max_count"], max_size=case["seg_max_size"], sync=False) as writer:
        for first, last, term in steps:
            for index in range(first, last + 1):
                digest = hashlib.sha256(f"z{case['seed']}:{index}:{term}".encode()).digest()
                size = 1 + int.from_bytes(digest[:4]) % case["size_mod"]
                blocks = (hashlib.sha256(f"{index}:{term}:{n}".encode()).digest() for n in range(size // 32 + 1))
                writer.append(index, term, b"".join(blocks)[:size])


def restore(source: Path, target: Path, files: Iterable[Mapping[str, Any]]) -> Path:
    """A writable copy of a reference directory; links that did not survive its transport are made again.

    Symlinks point to their sibling; files whose manifest says two links become one inode when their bytes are equal.
    """
    target.mkdir(parents=True)
    by_content: dict[bytes, Path] = {}
    for file in files:
        path = target / file["name"]
        if path.parent != target:
            continue
        if file["type"] == "symlink":
            path.symlink_to(os.path.basename(file["target"]))
            continue
        content = (source / file["name"]).read_bytes()
        if file.get("nlink") == 2 and content in by_content:
            os.link(by_content[content], path)
            continue
        path.write_bytes(content)
        by_content[content] = path
    if (source / "snapshots").is_dir():
        shutil.copytree(source / "snapshots", target / "snapshots", copy_function=shutil.copyfile)
        for directory in [target / "snapshots", *(target / "snapshots").iterdir()]:
            directory.chmod(0o755)
    return target


def content(directory: Path, *, snapshot_index: int | None = None, live: LiveSet | None = None) -> Content:
    """Everything that must survive and can be read: live entries below the snapshot, all above. CRCs are checked."""
    log = open_log(directory, snapshot_index=snapshot_index, live=live)
    only_live = log.snapshot_index is not None
    return {e.index: (e.term, hashlib.sha256(e.payload).hexdigest()) for e in iter_entries(log, live_only=only_live)}


def compact_log(
    directory: Path, limits: SegmentLimits, *, job: str, now: float, ownership: Ownership = Ownership.DETECT
) -> None:
    """Everything that the plan of a log says, as one job does it; checked on the way that the plan leaves nothing out
    and the receipts say what it said.
    """
    recovery.recover(directory, now=now, ownership=ownership)
    log = open_log(directory)
    assert log.live is not None
    waiting = frozenset(t.name for t in fence.read(directory).tombstones)
    plan = plan_log(log, limits, awaiting_deletion=waiting)
    named = [n for g in plan.groups for n in (*g.sources, *g.carried)]
    named += [u.name for u in plan.unreferenced] + [a.name for a in plan.left_alone]
    assert sorted(named) == [s.name for s in log.segments]
    fence.claim(directory, job=job, token=1, holder="test", now=now)
    for group in plan.groups:
        rewritten = kernel.rewrite_group(
            directory, sources=group.sources, live=log.live, limits=limits, job=job, token=1
        )
        receipt = commit.commit_group(
            directory, job=job, token=1, group=rewritten, holder="test", now=now, ownership=ownership
        )
        assert receipt.bytes_before == group.source_bytes
        assert receipt.bytes_after == group.output_bytes
    names = [u.name for u in plan.unreferenced]
    commit.commit_unreferenced(directory, job=job, token=1, names=names, holder="test", now=now, ownership=ownership)
    fence.retire(directory, job)


def leftovers(directory: Path) -> list[str]:
    """Names that only exist while something is half-done."""
    endings = (".compacting", ".link", ".compaction_group", ".tmp", ".partial", ".clump")
    return sorted(name for name in os.listdir(directory) if name.endswith(endings))


def regular(directory: Path) -> dict[str, int]:
    """Size of each segment that is a file of its own."""
    return {p.name: p.stat().st_size for p in directory.glob("*.segment") if not p.is_symlink()}


def compact_all(store: SegmentLogStore, log: Path, *, token: int = 1, sweep: bool = False) -> None:
    """One whole job on a log through the store: claim, rewrite and commit every group, drop what is dead."""
    job = f"job-{token}"
    plan = store.plan(log)
    store.claim(log, job=job, token=token)
    with storage_errors(log):
        snapshot = open_log(log).snapshot_index or 0
    prepared = store.prepare(log, job=job, groups=[g.sources for g in plan.groups], snapshot_index=snapshot)
    for group in prepared.groups:
        if group.error is not None:
            raise group.error
        done = store.rewrite(log, group=group, live=prepared.live, job=job, token=token)
        store.commit(log, job=job, token=token, group=done)
    store.commit_unreferenced(log, job=job, token=token, names=[item.name for item in plan.unreferenced])
    store.retire(log, job)
    if sweep:
        store.sweep(log, grace_seconds=0, active=frozenset())


# A small system of logs in which there is something of everything: written by the library, compacted, in every rule's
# sight.

WAIT: Final = 120.0
LIMITS: Final = SystemLimits(segments=NewSegments(max_count=8), snapshot_grace=1e9)


def entries(first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(index, term, b"entry %d of term %d" % (index, term)) for index in range(first, last + 1)]


def wal_records(path: Path) -> list[WalRecord]:
    """What a file of the write-ahead log holds."""
    with read_wal(path) as reader:
        return list(reader)


def flush(system: LogSystem) -> None:
    """Everything that was appended is in segments afterwards."""
    system.roll().result(WAIT)
    assert system.drain(WAIT)


def varied_system(directory: Path) -> Path:
    """Log `a`: snapshots at 16 and 32, segments of 8 entries up to index 64, of which the first ones are compacted, and
    entries 65-70 in the write-ahead log; log `b`: five entries in the write-ahead log. Returns log `a`.
    """
    log = directory / "a"
    with LogSystem(directory, limits=LIMITS) as system:
        a = system.open_log("a")
        a.append(entries(1, 40)).result(WAIT)
        flush(system)
        a.snapshot(16, 1, b"\x83j", LiveSet.parse("3,9-12")).result(WAIT)
        a.snapshot(32, 1, b"\x83j", LiveSet.parse("3,9,20,30")).result(WAIT)
        a.append(entries(41, 64, term=2)).result(WAIT)
        flush(system)
    done = CliRunner().invoke(segments_commands, ["compact", str(log), "--owner-stopped"])
    assert done.exit_code == 0, done.output
    with LogSystem(directory, limits=LIMITS) as system:
        system.open_log("a").append(entries(65, 70, term=2)).result(WAIT)
        system.open_log("b").append(entries(1, 5)).result(WAIT)
        # The file of the session before is empty, and goes; how soon is chance otherwise.
        assert system.drain(WAIT)
    # As of an installation that ended: none of the log's entries is behind it.
    write_cut(directory / "b", LogCut(99, 1))
    return log


def write_wal(directory: Path, number: int, records: Iterable[tuple[bytes, LogEntry]]) -> Path:
    """A write-ahead log file that no library of ours wrote: any writer, any entries."""
    encoder, path = RecordEncoder(), directory / wal_name(number)
    parts = [encoder.head(writer, item.index, item.term, item.payload) + item.payload for writer, item in records]
    path.write_bytes(HEADER + b"".join(parts))
    return path


# Segment writers that keep the wrong entries, in the place of `system.rules.select`: tests must find it.


def live_only_above(written: Sequence[Seq], row: LogRow, _: int | None) -> list[Seq]:
    """It drops what is live below the snapshot."""
    return [seq.floor(0 if row.snapshot_index is None else row.snapshot_index + 1) for seq in written]


def nothing_hides(written: Sequence[Seq], row: LogRow, _: int | None) -> list[Seq]:
    """It does not look at what the segments hold."""
    return select(written, row)


# What tests of commands share.

Run = Callable[..., Result]
