"""A log that its owner and compactions change while it is looked at: new segments, growing ones, long scans."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence
from compaction.segments.directory import fs
from compaction.segments.errors import (
    CorruptEntryError,
    CorruptSegmentError,
    LogChangedError,
    MissingSegmentHeaderError,
    SourcesChangedError,
)
from compaction.segments.format import segment_file
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.memtable import LogEntry
from compaction.segments.model import SLOT_BYTES, SegmentIndex, segment_name
from compaction.segments.planning.plan import GroupCheck, LeftAloneReason, group_ranges, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading import view
from compaction.segments.reading.reader import iter_entries, log_fingerprint
from compaction.segments.reading.view import open_log, read_segments
from compaction.segments.rewriting import kernel
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.store import SegmentLogStore
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import content

LIVE = LiveSet.parse("1,9,17,25,33,41,49,57")
LIMITS = SegmentLimits(max_sources=2)


def write(directory: Path, indexes: range, *, term: int = 1) -> None:
    with LogWriter(directory, max_count=8, sync=False) as writer:
        for index in indexes:
            writer.append(index, term, b"entry %d of %d" % (index, term))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Nine segments of eight entries; of the first eight one entry each is live."""
    directory = tmp_path / "root" / "log"
    write(directory, range(1, 73))
    write_snapshot(directory, index=64, term=1, live=LIVE)
    return directory


def compact(log: Path, *, groups: int | None = None) -> None:
    state = open_log(log)
    assert state.live is not None
    job = f"job-{len(fence.read(log).jobs)}"
    fence.claim(log, job=job, token=1, holder="test")
    for group in plan_log(state, LIMITS).groups[:groups]:
        done = kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=LIMITS, job=job, token=1)
        commit.commit_group(log, job=job, token=1, group=done, holder="test")


def test_the_owners_next_segment_before_its_header_is_the_newest_one(log: Path) -> None:
    before = content(log)
    (log / segment_name(10)).touch()
    state = open_log(log)
    assert (state.newest, state.segment(state.newest).count) == (segment_name(10), 0)
    assert content(log) == before
    left = {item.name: item.reason for item in plan_log(state, LIMITS).left_alone}
    assert left[segment_name(9)] is LeftAloneReason.NEWEST_SEGMENT
    assert left[segment_name(10)] is LeftAloneReason.NEWEST_SEGMENT
    assert sense_root(log.parent, SenseSettings()).errors == ()
    compact(log)
    sweep.sweep(log, now=4e9, grace_seconds=0)
    assert content(log) == before
    assert (log / segment_name(10)).read_bytes() == b""
    write(log, range(73, 75))
    assert open_log(log).refs[-1].last == 74


def test_a_job_starts_while_the_owner_makes_its_next_segment(log: Path) -> None:
    store = SegmentLogStore(log.parent)
    store.claim("log", job="j", token=1)
    (log / segment_name(10)).touch()
    todo = store.prepare("log", job="j", groups=[(segment_name(1), segment_name(2))], snapshot_index=64)
    assert todo.groups[0].ranges is not None


def test_an_empty_file_anywhere_else_is_named(log: Path) -> None:
    (log / segment_name(4)).write_bytes(b"")
    with pytest.raises(MissingSegmentHeaderError, match=segment_name(4)):
        open_log(log)
    (error,) = sense_root(log.parent, SenseSettings()).errors
    assert (error.reason, error.segment) == (LogErrorReason.CORRUPT_SEGMENT, segment_name(4))


def test_a_cut_off_header_is_named_also_in_the_newest_segment(log: Path) -> None:
    """As in Ra, which makes a file of 0 bytes again but stops at one of 1 to 7."""
    (log / segment_name(10)).write_bytes(b"RASG")
    with pytest.raises(CorruptSegmentError, match=segment_name(10)):
        open_log(log)


@pytest.mark.parametrize("live_only", [True, False])
def test_a_long_scan_goes_on_where_compactions_overtake_it(log: Path, live_only: bool) -> None:
    """A commit, and a sweep, after every few entries: nothing twice, nothing live missing, nothing out of order."""
    state, before = open_log(log), content(log)
    expected = log_fingerprint(state).hexdigest()
    seen: list[int] = []
    scanning: Iterator[int] = (entry.index for entry in iter_entries(state, live_only=live_only))
    for index in scanning:
        seen.append(index)
        if len(seen) in (1, 3, 6):
            compact(log, groups=1)
            sweep.sweep(log, now=4e9, grace_seconds=0)
    assert sorted(set(seen)) == seen
    assert set(before) <= set(seen)
    assert log_fingerprint(state).hexdigest() == expected == log_fingerprint(open_log(log)).hexdigest()


def test_a_scan_ends_when_the_log_never_holds_still(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_log(log)

    def always_gone(path: Path, *, newest: bool = False) -> SegmentIndex:
        raise FileNotFoundError(path)

    monkeypatch.setattr(view, "read_segment", always_gone)
    shutil.copyfile(log / segment_name(1), log / "copy")
    (log / "copy").rename(log / segment_name(1))
    with pytest.raises(LogChangedError, match="run again"):
        list(iter_entries(state))


def test_a_growing_segment_is_read_as_it_was_opened(log: Path) -> None:
    write(log, range(73, 75))
    state = open_log(log)
    write(log, range(75, 77))
    assert [entry.index for entry in iter_entries(state)][-1] == 74
    assert [entry.index for entry in iter_entries(open_log(log))][-1] == 76


def test_an_inode_that_was_used_again_is_another_file(log: Path) -> None:
    """The number of a deleted file is free for the next one: the same name and inode do not make the same file."""
    state = open_log(log)
    path = log / segment_name(2)
    inode, size = path.stat().st_ino, path.stat().st_size
    data = bytearray((log / segment_name(3)).read_bytes())
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(size)
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
    entries = [entry for entry in iter_entries(state) if entry.file == path.name]
    assert {entry.index for entry in entries} <= set(range(17, 25))


def test_a_segment_that_grew_while_its_index_was_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is taken together with the index: else a record newer than the size looks torn."""
    write(log, range(73, 75))
    decode, grown = segment_file.decode_segment, iter([True, True])

    def growing(head: bytes, **kwargs: object) -> SegmentIndex:
        if kwargs["path"] == log / segment_name(10) and next(grown, False):
            write(log, range(75, 77))
        return decode(head, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_file, "decode_segment", growing)
    index = segment_file.read_segment(log / segment_name(10))
    assert index.identity.size == os.stat(log / segment_name(10)).st_size
    assert index.inside.all()


def test_a_name_listed_twice_counts_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that changes while it is listed may show a replaced name twice, or not at all."""
    list_names, looks = view._list_names, iter([1, 2])
    duplicate: Callable[[Path], dict[str, bool]] = list_names

    def missing(directory: Path) -> dict[str, bool]:
        found = duplicate(directory)
        if next(looks, None) == 1:
            del found[segment_name(1)]
        return found

    monkeypatch.setattr(view, "_list_names", missing)
    assert [segment.name for segment in open_log(log).segments] == [segment_name(n) for n in range(1, 10)]


def _sparse(tmp_path: Path) -> Path:
    """Segment 2 is dead and lies between two sources; 40 entries, snapshot 32."""
    directory = tmp_path / "sparse"
    write(directory, range(1, 41))
    write_snapshot(directory, index=32, term=1, live=LiveSet.parse("1,17,25-32"))
    return directory


def test_only_what_was_proved_dead_is_carried_along(tmp_path: Path) -> None:
    """A segment that its owner put back after the look belongs to no proof: the group is planned again."""
    log = _sparse(tmp_path)
    write_snapshot(log, index=32, term=2, live=LiveSet.parse("1,17,25-32"))
    saved = (log / segment_name(2)).read_bytes()
    (log / segment_name(2)).unlink()
    state, sources = open_log(log), (segment_name(1), segment_name(3))
    assert state.live is not None
    ranges = group_ranges(state, sources, state.live)
    (log / segment_name(2)).write_bytes(saved)
    with pytest.raises(SourcesChangedError, match=segment_name(2)):
        kernel.rewrite_group(log, sources=sources, live=state.live, limits=LIMITS, job="j", token=1, ranges=ranges)


def test_a_carried_segment_that_changed_since_the_look_is_not_carried(tmp_path: Path) -> None:
    log = _sparse(tmp_path)
    state, sources = open_log(log), (segment_name(1), segment_name(3))
    assert state.live is not None
    ranges = GroupCheck(state, state.live).ranges(sources)
    assert [dead.name for dead in ranges.carried] == [segment_name(2)]
    path = log / segment_name(2)
    shutil.copyfile(path, log / "copy")
    (log / "copy").rename(path)
    with pytest.raises(SourcesChangedError, match=segment_name(2)):
        kernel.rewrite_group(log, sources=sources, live=state.live, limits=LIMITS, job="j", token=1, ranges=ranges)
    path.unlink()
    done = kernel.rewrite_group(log, sources=sources, live=state.live, limits=LIMITS, job="j", token=1, ranges=ranges)
    assert done.carried == ()


def test_a_source_that_another_job_compacted_since_the_look_is_not_cut_to_its_old_range(log: Path) -> None:
    """The same name now stands for more: rewritten to the range it had, it would lose what it took in."""
    state, before = open_log(log), content(log)
    assert state.live is not None
    ranges = group_ranges(state, [segment_name(1)], state.live)
    compact(log, groups=1)
    assert (log / segment_name(2)).is_symlink()
    with pytest.raises(SourcesChangedError, match=segment_name(1)):
        kernel.rewrite_group(
            log, sources=[segment_name(1)], live=state.live, limits=LIMITS, job="late", token=1, ranges=ranges
        )
    assert content(log) == before


# A segment that grows while it is read: its slots are copied into the file after its data, and not at one moment.

SLOT = SLOT_BYTES[2]
PARTS = (8, 16, 24)
"""Bytes of a slot that are there before the rest: the kernel copies it in words of eight or more."""


def write_growing(directory: Path, *indexes: int) -> Path:
    """Appends to the log; returns its last segment."""
    with LogWriter(directory, max_count=4) as writer:
        for index in indexes:
            writer.append(index, 1, b"payload %d" % index)
        return writer._writable().path


def tear(path: Path, part: int) -> Callable[[], None]:
    """Leave only the first `part` bytes of the last slot, under the file's own time; the result puts them back."""
    row = segment_file.read_segment(path).count - 1
    begin = 8 + row * SLOT
    slot = path.read_bytes()[begin : begin + SLOT]

    def put(data: bytes) -> None:
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    put(slot[:part].ljust(SLOT, b"\0"))
    return lambda: put(slot)


@pytest.mark.parametrize("part", PARTS)
def test_half_a_slot_is_read_again(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_growing(tmp_path, 1, 2, 3)
    whole = tear(path, part)
    monkeypatch.setattr(time, "sleep", lambda _seconds: whole())
    segment = segment_file.read_segment(path, newest=True)
    assert segment.idx.tolist() == [1, 2, 3]
    assert segment.length.tolist() == [9, 9, 9]
    assert [entry.payload for entry in iter_entries(open_log(tmp_path))] == [b"payload 1", b"payload 2", b"payload 3"]


@pytest.mark.parametrize("part", PARTS)
def test_what_was_read_of_the_newest_segment_is_not_kept(tmp_path: Path, part: int) -> None:
    """Not while it is the newest, and not when it is the newest no longer."""
    path = write_growing(tmp_path, 1, 2, 3)
    whole = tear(path, part)
    before = {segment.name: segment for segment in read_segments(tmp_path).segments}
    whole()
    assert path.stat().st_mtime_ns == before[path.name].identity.mtime_ns
    again = read_segments(tmp_path, known=before)
    assert again.segments[0].length.tolist() == [9, 9, 9]

    write_growing(tmp_path, 4, 5)
    now = read_segments(tmp_path, known=before)
    assert [segment.name for segment in now.segments] == [segment_name(1), segment_name(2)]
    assert now.segments[0].length.tolist() == [9, 9, 9, 9]
    kept = read_segments(tmp_path, known={segment.name: segment for segment in now.segments})
    assert kept.segments[0] is now.segments[0]
    assert kept.segments[1] is not now.segments[1]


def test_a_segment_that_becomes_older_while_the_directory_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_growing(tmp_path, 1, 2, 3, 4)
    whole = tear(path, 24)
    read = segment_file.read_segment

    def read_and_roll(at: Path, *, newest: bool = False) -> object:
        found = read(at, newest=newest)
        if at == path and newest:
            whole()
            write_growing(tmp_path, 5)
        return found

    monkeypatch.setattr("compaction.segments.reading.view.read_segment", read_and_roll)
    found = read_segments(tmp_path).segments
    assert [item.idx.tolist() for item in found] == [[1, 2, 3, 4], [5]]
    assert found[0].length.tolist() == [9, 9, 9, 9]


def test_a_record_without_bytes_is_damage_and_no_entry(tmp_path: Path) -> None:
    path = write_growing(tmp_path, 1, 2, 3)
    tear(path, 24)
    with pytest.raises(CorruptEntryError, match=r"index 3, .*no bytes, and no entry is empty"):
        list(iter_entries(open_log(tmp_path)))
    handed_over: list[CorruptEntryError] = []
    assert [entry.index for entry in iter_entries(open_log(tmp_path), on_corrupt=handed_over.append)] == [1, 2]
    assert len(handed_over) == 1


def test_a_reader_beside_a_flush_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at each moment at which the slots were half there; what is read afterwards is what was written."""
    write_at, logs = fs.write_at, list[Log]()

    def in_parts(fd: int, data: bytes, offset: int) -> None:
        if not logs or offset < 8 or len(data) % SLOT or offset % SLOT != 8:
            return write_at(fd, data, offset)
        reader = threading.Thread(target=logs[0].refresh)
        write_at(fd, data[: len(data) - 8], offset)
        reader.start()
        reader.join()
        before = os.fstat(fd)
        write_at(fd, data, offset)
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        return None

    monkeypatch.setattr(fs, "write_at", in_parts)
    limits = SystemLimits(wal=WalLimits(max_size=4096), segments=NewSegments(max_count=64))
    entries = [LogEntry(index, 1, b"%d " % index * 40) for index in range(1, 201)]
    with LogSystem(tmp_path, limits=limits) as system:
        log = system.open_log("log")
        logs.append(log)
        for begin in range(0, 200, 20):
            log.append(entries[begin : begin + 20]).result(PATIENCE_SECONDS)
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(60)
        assert not log.waiting
        assert log.read(range(1, 201)) == entries
