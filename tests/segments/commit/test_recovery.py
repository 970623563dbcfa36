"""Recovery of every half-done directory we know: Ra's (fixtures 04 a..j), the design note's (n1..n5), and defects
B1-B7.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence, recovery
from compaction.segments.commit.recovery import RaOutcome
from compaction.segments.errors import (
    CorruptEntryError,
    LiveEntriesMissingError,
    LiveSetUnknownError,
    MissingLiveIndexError,
    StoreIOError,
)
from compaction.segments.format import etf
from compaction.segments.format.segment_file import LogWriter, encode_header, encode_records, read_segment
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.plan import group_ranges, plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.faults.sudden_death import DyingFilesystem
from support.segments.segment_logs import content, leftovers, live_set, restore, write_wal

FIXTURE = "04-crashed-compaction"
RA_STATES = {
    "a-marker-empty": RaOutcome.CLEANED,
    "a3-single-marker-no-compacting": RaOutcome.CLEANED,
    "b-compacting-header": RaOutcome.ABORTED,
    "c-compacting-torn": RaOutcome.ABORTED,
    "d-compacting-complete": RaOutcome.ABORTED,
    "e-renamed-no-links": RaOutcome.FINISHED,
    "f-renamed-link-tmp": RaOutcome.FINISHED,
    "g-renamed-one-link": RaOutcome.FINISHED,
    "h-marker-left": RaOutcome.FINISHED,
    "i-single-before-rename": RaOutcome.ABORTED,
    "j-single-after-rename": RaOutcome.CLEANED,
}
NOTE_STATES = {
    "n1-note-nlink1": False,
    "n2-note-nlink1-torn": False,
    "n3-note-nlink2-no-symlinks": True,
    "n4-note-nlink2-one-symlink": True,
    "n5-note-nlink2-all-symlinks": True,
}

Crashed = Callable[[str], tuple[Path, dict[str, Any], dict[int, tuple[int, str]]]]


@pytest.fixture
def crashed(shared_fixtures: Path, tmp_path: Path) -> Crashed:
    """(directory as the crash left it, with a snapshot; the manifest; what must be readable) of a state."""

    def make(name: str) -> tuple[Path, dict[str, Any], dict[int, tuple[int, str]]]:
        source = shared_fixtures / "ra" / FIXTURE / name
        manifest = json.loads((source / "manifest.json").read_text())
        directory = restore(source / "crashed", tmp_path / name, manifest["crashed_files"])
        live = live_set(manifest["live_indexes"])
        write_snapshot(directory, index=manifest["snapshot_index"], term=1, live=live)
        entries = json.loads((source / manifest["entries_file"]).read_text())
        wanted = {
            e["idx"]: (e["term"], e["sha256"])
            for e in entries
            if e["idx"] in live or e["idx"] > manifest["snapshot_index"]
        }
        return directory, manifest, wanted

    return make


def _compact(directory: Path, job: str = "after-recovery") -> None:
    live = open_log(directory).live
    assert live is not None
    plan = plan_log(open_log(directory), SegmentLimits())
    fence.claim(directory, job=job, token=1, holder="test")
    for group in plan.groups:
        rewritten = kernel.rewrite_group(
            directory, sources=group.sources, live=live, limits=SegmentLimits(), job=job, token=1
        )
        commit.commit_group(directory, job=job, token=1, group=rewritten, holder="test")


def foreseen(outlook: recovery.RecoveryReport, report: recovery.RecoveryReport) -> None:
    """A `.link` that is needed again on the way goes with what is made of it."""
    assert replace(outlook, removed=()) == replace(report, removed=())
    assert set(report.removed) <= set(outlook.removed)


@pytest.mark.fixtures
@pytest.mark.parametrize("name", RA_STATES)
def test_ras_half_done_compactions(crashed: Crashed, name: str) -> None:
    directory, manifest, wanted = crashed(name)
    assert recovery.is_needed(directory)
    outlook, _ = recovery.whole_outlook(directory)
    report = recovery.recover(directory)
    foreseen(outlook, report)
    assert [r.outcome for r in report.ra] == [RA_STATES[name]]
    assert content(directory) == wanted
    assert leftovers(directory) == []
    assert not recovery.is_needed(directory)
    assert not recovery.recover(directory).changed
    names = {p.name: p.is_symlink() for p in directory.glob("*.segment")}
    assert names == {f["name"]: f["type"] == "symlink" for f in manifest["recovered_files"]}
    for path in directory.glob("*.segment"):
        if path.is_symlink():
            assert not path.readlink().is_absolute() or name in ("g-renamed-one-link", "h-marker-left")
    _compact(directory)
    assert content(directory) == wanted


@pytest.mark.fixtures
@pytest.mark.parametrize("name", NOTE_STATES)
def test_the_design_notes_half_done_groups(crashed: Crashed, name: str) -> None:
    directory, _manifest, wanted = crashed(name)
    group = "0000000000000001-0000000000000002-0000000000000003"
    if NOTE_STATES[name]:
        assert (directory / f"{group}.compacting").stat().st_nlink == 2
    outlook, _ = recovery.whole_outlook(directory)
    report = recovery.recover(directory)
    foreseen(outlook, report)
    assert (report.finished, report.discarded) == (((group,), ()) if NOTE_STATES[name] else ((), (group,)))
    assert content(directory) == wanted
    assert leftovers(directory) == []
    assert not recovery.recover(directory).changed
    linked = {p.name for p in directory.glob("*.segment") if p.is_symlink()}
    assert linked == ({"0000000000000002.segment", "0000000000000003.segment"} if NOTE_STATES[name] else set())
    assert {t.name for t in fence.read(directory).tombstones} == linked
    assert (directory / "0000000000000001.segment").stat().st_nlink == 1


@pytest.mark.fixtures
def test_a_hard_link_backup_is_no_evidence(crashed: Crashed) -> None:
    """Link count 2 because somebody backed the file up with `cp -al`: the inode is not the lowest segment's."""
    directory, _, wanted = crashed("n1-note-nlink1")
    compacting = next(directory.glob("*.compacting"))
    os.link(compacting, directory.parent / "backup")
    os.link(directory / "0000000000000001.segment", directory.parent / "backup-of-1")
    report = recovery.recover(directory)
    assert report.discarded
    assert not report.finished
    assert content(directory) == wanted


def _marker(directory: Path, *numbers: int) -> None:
    names: list[etf.Term] = [f"{n:016d}.segment".encode() for n in numbers]
    (directory / f"{numbers[0]:016d}.compaction_group").write_bytes(etf.encode(names))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four segments of 8 entries: 1..32, snapshot 24, every third live."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=8) as writer:
        for index in range(1, 33):
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(directory, index=24, term=1, live=LiveSet.from_indexes(range(1, 25, 3)))
    return directory


def test_b1_a_marker_without_compacting_proves_nothing(log: Path) -> None:
    """Ra links the members to the leader that was never compacted, and loses them."""
    before = content(log)
    _marker(log, 1, 2, 3)
    report = recovery.recover(log)
    assert [r.outcome for r in report.ra] == [RaOutcome.UNPROVEN]
    assert content(log) == before
    assert not open_log(log).links
    assert leftovers(log) == []


def test_b1_holds_when_the_live_set_is_unknown(log: Path) -> None:
    _marker(log, 1, 2, 3)
    next(log.glob("snapshots/*/indexes")).unlink()
    assert recovery.recover(log).ra[0].outcome is RaOutcome.UNPROVEN
    assert not open_log(log).links


def test_b2_missing_indexes_is_unknown_not_empty(log: Path) -> None:
    next(log.glob("snapshots/*/indexes")).unlink()
    with pytest.raises(LiveSetUnknownError, match="indexes"):
        plan_log(open_log(log), SegmentLimits())
    fence.claim(log, job="j", token=1, holder="test")
    names = ["0000000000000001.segment"]
    with pytest.raises(LiveSetUnknownError):
        commit.commit_unreferenced(log, job="j", token=1, names=names, holder="test")
    plan = plan_log(open_log(log), SegmentLimits(), indexes_missing=IndexesMissing.TREAT_AS_EMPTY)
    assert [int(u.name[:16]) for u in plan.unreferenced] == [1, 2, 3]


def test_b3_a_failed_rewrite_can_be_retried_at_once(log: Path) -> None:
    """No space half-way: no leftover, and the very next attempt in the same process succeeds."""
    before = content(log)
    live = open_log(log).live
    assert live is not None
    sources = plan_log(open_log(log), SegmentLimits()).groups[0].sources
    full = DyingFilesystem(at=4, error=OSError(28, "No space left on device"))
    with full, pytest.raises(StoreIOError, match="No space left"):
        kernel.rewrite_group(log, sources=sources, live=live, limits=SegmentLimits(), job="j", token=1)
    assert full.calls[4] == "write"
    assert leftovers(log) == []
    _compact(log)
    assert content(log) == before


def test_b4_two_markers_are_settled_one_by_one(log: Path) -> None:
    before = content(log)
    _marker(log, 1, 2)
    _marker(log, 3)
    (log / "0000000000000003.compacting").write_bytes(b"RASG\x00\x02\x00\x08torn")
    report = recovery.recover(log)
    assert [r.outcome for r in report.ra] == [RaOutcome.UNPROVEN, RaOutcome.ABORTED]
    assert leftovers(log) == []
    assert content(log) == before


def test_b5_the_later_of_two_equal_indexes_is_copied(tmp_path: Path) -> None:
    """The last index rewritten in place: Ra's binary index mode serves the older entry."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=8) as writer:
        for index, term in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (5, 2)]:
            writer.append(index, term, b"%d of term %d" % (index, term))
    with LogWriter(directory, max_count=8) as writer:
        for index in range(6, 20):
            writer.append(index, 2, b"tail")
    write_snapshot(directory, index=8, term=2, live=LiveSet.parse("5"))
    before = content(directory)
    assert before[5][0] == 2
    _compact(directory)
    assert content(directory) == before
    output = read_segment(directory / "0000000000000001.segment")
    assert output.term.tolist() == [2]


def test_b6_a_corrupt_payload_is_never_copied(log: Path) -> None:
    segment = read_segment(log / "0000000000000002.segment")
    row = segment.idx.tolist().index(10)
    with (log / "0000000000000002.segment").open("r+b") as file:
        file.seek(int(segment.offset[row]))
        file.write(b"X")
    live = open_log(log).live
    assert live is not None
    plan = plan_log(open_log(log), SegmentLimits())
    with pytest.raises(CorruptEntryError, match="index 10") as caught:
        kernel.rewrite_group(log, sources=plan.groups[0].sources, live=live, limits=SegmentLimits(), job="j", token=1)
    assert Path(caught.value.file).name == "0000000000000002.segment"
    assert (caught.value.index, caught.value.offset) == (10, int(segment.offset[row]))
    assert leftovers(log) == []
    rest = plan_log(open_log(log), SegmentLimits(), quarantined=frozenset({"0000000000000002.segment"}))
    assert [g.sources for g in rest.groups] == [("0000000000000001.segment",), ("0000000000000003.segment",)]
    assert ("0000000000000002.segment", "Quarantined") in {(a.name, a.reason) for a in rest.left_alone}


def test_b7_a_missing_live_index_fails_the_group_by_name(log: Path) -> None:
    """Index 13 is live and in segment 2's range, but has no record there. Without it in a write-ahead log nothing is
    planned at all.
    """
    path = log / "0000000000000002.segment"
    segment = read_segment(path)
    keep = segment.idx != 13
    data = path.read_bytes()
    length = segment.length[keep]
    records = encode_records(
        idx=segment.idx[keep],
        term=segment.term[keep],
        offset=segment.data_start + np.cumsum(length, dtype=np.uint64) - length,
        length=length,
        crc=segment.crc[keep],
    )
    head = (encode_header(max_count=8) + records).ljust(segment.data_start, b"\0")
    spans = zip(segment.offset[keep].tolist(), length.tolist(), strict=True)
    path.write_bytes(head + b"".join(data[begin : begin + size] for begin, size in spans))
    live = open_log(log).live
    assert live is not None
    assert {left.reason for left in plan_log(open_log(log), SegmentLimits()).left_alone} == {"LiveEntriesMissing"}
    with pytest.raises(LiveEntriesMissingError, match="first index 13"):
        group_ranges(open_log(log), [path.name], live)
    write_wal(log.parent, 1, [(log.name.encode(), LogEntry(13, 1, b"waits"))])
    plan = plan_log(open_log(log), SegmentLimits())
    with pytest.raises(MissingLiveIndexError, match="live index 13") as caught:
        kernel.rewrite_group(log, sources=plan.groups[0].sources, live=live, limits=SegmentLimits(), job="j", token=1)
    assert Path(caught.value.file) == path
    assert leftovers(log) == []
    assert read_segment(path).count == 7


@pytest.mark.parametrize(
    "marker",
    [b"", b"banana", etf.encode([b"../../etc/passwd"]), etf.encode([1, 2]), etf.encode({}), etf.encode([b"\xff\xfe"])],
    ids=["empty", "garbage", "foreign-name", "numbers", "map", "not-text"],
)
def test_a_marker_that_says_nothing_is_removed(log: Path, marker: bytes) -> None:
    before = content(log)
    (log / "0000000000000001.compaction_group").write_bytes(marker)
    assert recovery.recover(log).ra[0].members == ()
    assert leftovers(log) == []
    assert content(log) == before


def test_ras_compacted_leader_hidden_behind_a_dead_segment_is_kept(tmp_path: Path) -> None:
    """Ra died after linking 1 and 3, before deleting the dead 2 between them: 1 holds entries that 2 hides.

    Ra's own restart would read 1..8 from it and lose the rest. The segment is left alone, the dead one goes first, and
    then everything can be read again.
    """
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=8) as writer:
        for index in range(1, 41):
            writer.append(index, 1, b"entry %d" % index)
    live = LiveSet.parse("2,5,18,20")
    write_snapshot(directory, index=32, term=1, live=live)
    before = content(directory)
    # What Ra's step d and e make of the group 1, 3.
    rewritten = kernel.rewrite_group(
        directory,
        sources=["0000000000000001.segment", "0000000000000003.segment"],
        live=live,
        limits=SegmentLimits(),
        job="ra",
        token=1,
    )
    os.rename(directory / rewritten.partial, directory / "0000000000000001.segment")
    (directory / "0000000000000003.segment").unlink()
    (directory / "0000000000000003.segment").symlink_to("0000000000000001.segment")
    assert 18 not in content(directory)
    plan = plan_log(open_log(directory), SegmentLimits())
    assert not plan.groups
    assert {(a.name[:16].lstrip("0"), a.reason) for a in plan.left_alone} >= {("1", "StrandedEntries")}
    assert [int(u.name[:16]) for u in plan.unreferenced] == [2, 4]
    fence.claim(directory, job="j", token=1, holder="test")
    commit.commit_unreferenced(directory, job="j", token=1, names=[u.name for u in plan.unreferenced], holder="test")
    sweep.sweep(directory, grace_seconds=0)
    assert content(directory) == before


def test_nothing_to_recover_changes_nothing(log: Path) -> None:
    listing: Mapping[str, int] = {p.name: p.stat().st_mtime_ns for p in log.iterdir()}
    assert not recovery.is_needed(log)
    assert not recovery.recover(log).changed
    after = {p.name: p.stat().st_mtime_ns for p in log.iterdir() if p.name != "compaction.lock"}
    assert after == dict(listing)


def test_recovery_without_the_fence_file_still_uses_the_inode(log: Path) -> None:
    """The fence was moved away in the middle of a commit: the links are finished from the name alone."""
    before = content(log)
    live = open_log(log).live
    assert live is not None
    fence.claim(log, job="j", token=1, holder="test")
    sources = plan_log(open_log(log), SegmentLimits()).groups[0].sources
    rewritten = kernel.rewrite_group(log, sources=sources, live=live, limits=SegmentLimits(), job="j", token=1)
    compacting = log / f"{rewritten.partial.split('.')[0]}.compacting"
    os.rename(log / rewritten.partial, compacting)
    shutil.copyfile(log / "compaction.fence", log.parent / "fence.moved")
    (log / "compaction.fence").unlink()
    (log / sources[0]).unlink()
    os.link(compacting, log / sources[0])
    assert recovery.recover(log).finished
    assert content(log) == before
    assert open_log(log).links == dict.fromkeys(sources[1:], sources[0])
