"""What Ra's suites check of a log's own side, on real systems: a test for each line.

ra_log_wal, ra_log_segment_writer, ra_log_2, ra_snapshot, ra_log_segments and ra_kv. Those about installations are in
`install/test_ra_scenarios.py`; those about sequences (ra_seq) in `memtable/test_seq.py`; single segments, and what a
crash in the middle of a compaction leaves, in `format` and `commit`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compaction.segments.directory.fs import regular_segments
from compaction.segments.errors import CorruptIndexesError, LiveSetUnknownError, LogClosedError
from compaction.segments.format.segment_file import read_segment
from compaction.segments.memtable import LogEntry
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import LogState, open_log
from compaction.segments.snapshot.directories import INDEXES_FILE
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.compactions import OwnerCompaction
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.files import wal_files
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS
from support.segments.segment_logs import append_random_steps, live_set, wal_records

STATE = b"\x83j"
LIMITS = SystemLimits(
    segments=NewSegments(max_count=128),
    snapshot_grace=0.0,
    compaction=OwnerCompaction(limits=SegmentLimits(max_entries=128), grace=0.0),
)


def entries(first: int, last: int, term: int = 1, size: int = 0) -> list[LogEntry]:
    return [LogEntry(index, term, (b"%d@%d" % (index, term)).ljust(size, b".")) for index in range(first, last + 1)]


def flush(system: LogSystem) -> None:
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)


def snapshot(log: Log, index: int, live: str, term: int = 1) -> None:
    log.snapshot(index, term, STATE, LiveSet.parse(live)).result(PATIENCE_SECONDS)


def stored(log: Log) -> list[int]:
    """Which indexes the segments of a log hold, dead ones included."""
    names = regular_segments(log.directory)
    return [int(index) for name in names for index in read_segment(log.directory / name).idx]


def recorded(directory: Path) -> list[tuple[int, bool]]:
    """Index and truncate flag of each record in the write-ahead log."""
    return [(record.index, record.truncate) for path in wal_files(directory) for record in wal_records(path)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "system"


@pytest.fixture
def opened(directory: Path) -> Iterator[Callable[[], tuple[LogSystem, Log]]]:
    """Opens the system, again when it is called again."""
    systems: list[LogSystem] = []

    def again() -> tuple[LogSystem, Log]:
        if systems:
            systems.pop().close()
        systems.append(LogSystem(directory, limits=LIMITS))
        return systems[0], systems[0].open_log("log")

    yield again
    systems[0].close()


Opened = Callable[[], tuple[LogSystem, Log]]

# --- ra_log_wal ---


def test_sparse_writes_in_several_batches_and_in_one(opened: Opened) -> None:
    _, log = opened()
    previous = None
    for entry in (LogEntry(3, 1, b"a"), LogEntry(9, 1, b"b"), LogEntry(20, 1, b"c")):
        log.write_sparse(entry, previous).result(PATIENCE_SECONDS)
        previous = entry.index
    one_batch = [log.write_sparse(LogEntry(index, 1, b"d"), index - 5) for index in (25, 30, 35)]
    assert [future.result(PATIENCE_SECONDS).index for future in one_batch] == [25, 30, 35]
    assert list(log.indexes()) == [3, 9, 20, 25, 30, 35]


def test_sparse_writes_are_recovered(opened: Opened, directory: Path) -> None:
    _, log = opened()
    log.write_sparse(LogEntry(5, 1, b"x"), None).result(PATIENCE_SECONDS)
    log.write_sparse(LogEntry(50, 1, b"y"), 5).result(PATIENCE_SECONDS)
    assert recorded(directory) == [(5, False), (50, False)]
    _, log = opened()
    assert log.read(range(99)) == [LogEntry(5, 1, b"x"), LogEntry(50, 1, b"y")]
    log.append(entries(51, 52)).result(PATIENCE_SECONDS)
    assert list(opened()[1].indexes()) == [5, 50, 51, 52]


def test_a_snapshot_truncates_implicitly_what_lies_before_its_smallest_live_index(
    opened: Opened, directory: Path
) -> None:
    """The next write at the smallest live index has the truncate flag, and recovery drops what is below."""
    _, log = opened()
    log.append(entries(1, 5)).result(PATIENCE_SECONDS)
    snapshot(log, 5, "")
    log.append(entries(6, 7)).result(PATIENCE_SECONDS)
    assert recorded(directory)[-2:] == [(6, True), (7, False)]
    assert list(opened()[1].indexes()) == [6, 7]


def test_after_a_truncation_the_next_file_goes_on(opened: Opened) -> None:
    system, log = opened()
    log.append(entries(1, 5)).result(PATIENCE_SECONDS)
    system.roll().result(PATIENCE_SECONDS)
    snapshot(log, 5, "3")
    log.append(entries(6, 8)).result(PATIENCE_SECONDS)
    assert list(opened()[1].indexes()) == [3, 6, 7, 8]


# --- ra_log_segment_writer ---


@pytest.mark.parametrize(
    ("written", "at", "live", "kept"),
    [
        ("1-5", 4, "2,4", "2,4-5"),
        ("1-100", 80, "10-20,50", "10-20,50,81-100"),
        ("1-10", 6, "", "7-10"),
        ("1-10", 10, "2,5,9", "2,5,9"),
    ],
    ids=["live_indexes_1", "live_indexes_2", "skip below snapshot", "all below the snapshot"],
)
def test_only_live_entries_reach_segments(opened: Opened, written: str, at: int, live: str, kept: str) -> None:
    system, log = opened()
    log.append(entries(LiveSet.parse(written).smallest, LiveSet.parse(written).largest)).result(PATIENCE_SECONDS)
    snapshot(log, at, live)
    flush(system)
    assert stored(log) == list(LiveSet.parse(kept))
    assert list(log.indexes()) == list(LiveSet.parse(kept))


def test_several_ranges_with_a_snapshot(opened: Opened) -> None:
    system, log = opened()
    log.append(entries(1, 3)).result(PATIENCE_SECONDS)
    log.write_sparse(LogEntry(100, 1, b"x"), 3).result(PATIENCE_SECONDS)
    log.write_sparse(LogEntry(200, 1, b"y"), 100).result(PATIENCE_SECONDS)
    log.append(entries(201, 203)).result(PATIENCE_SECONDS)
    snapshot(log, 201, "2,200")
    flush(system)
    assert stored(log) == [2, 200, 202, 203]


def test_overwrites_in_memory_are_written_once(opened: Opened) -> None:
    system, log = opened()
    log.append(entries(1, 10)).result(PATIENCE_SECONDS)
    log.append(entries(5, 7, term=2)).result(PATIENCE_SECONDS)
    log.append(entries(7, 9, term=3)).result(PATIENCE_SECONDS)
    flush(system)
    assert stored(log) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [entry.term for entry in log.read(range(99))] == [1, 1, 1, 1, 2, 2, 3, 3, 3]


def test_entries_of_a_deleted_log_are_dropped_and_others_flushed(opened: Opened, directory: Path) -> None:
    system, log = opened()
    other = system.open_log("other")
    log.append(entries(1, 3)).result(PATIENCE_SECONDS)
    other.append(entries(1, 3)).result(PATIENCE_SECONDS)
    system.close()
    for path in sorted((directory / "other").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (directory / "other").rmdir()
    system, log = opened()
    flush(system)
    assert stored(log) == [1, 2, 3]
    assert system.uids == ["log"]


# --- ra_snapshot ---


def test_a_corrupt_indexes_file_is_rebuilt_by_the_owner_or_refused(opened: Opened, directory: Path) -> None:
    system, log = opened()
    log.append(entries(1, 9)).result(PATIENCE_SECONDS)
    snapshot(log, 8, "2,4")
    path = next((log.directory / "snapshots").iterdir()) / INDEXES_FILE
    system.close()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with LogSystem(directory, limits=LIMITS) as again:
        with pytest.raises(CorruptIndexesError, match="indexes"):
            again.open_log("log")
        rebuilt = again.open_log("log", rebuild_live=lambda _: LiveSet.parse("2,4"))
        assert list(rebuilt.indexes()) == [2, 4, 9]
    assert list(opened()[1].indexes()) == [2, 4, 9]


def test_a_newer_snapshot_overtakes_and_the_older_one_goes(opened: Opened) -> None:
    _, log = opened()
    log.append(entries(1, 20)).result(PATIENCE_SECONDS)
    asked = [log.snapshot(index, 1, STATE, LiveSet.parse("2")) for index in (5, 10, 15)]
    assert [future.result(PATIENCE_SECONDS).index for future in asked] == [5, 10, 15]
    assert log.row.snapshot_index == 15
    log.snapshot(16, 1, STATE, LiveSet.parse("")).result(PATIENCE_SECONDS)
    assert len(list((log.directory / "snapshots").iterdir())) <= 2


# --- ra_log_2 ---


def test_a_dangling_symlink_is_no_reason_not_to_open(opened: Opened) -> None:
    """Left of a compaction whose target was deleted before the owner started again."""
    system, log = opened()
    log.append(entries(1, 300)).result(PATIENCE_SECONDS)
    flush(system)
    system.close()
    (log.directory / "0000000000000099.segment").symlink_to("0000000000000098.segment")
    _, log = opened()
    assert log.read(range(400)) == entries(1, 300)


def test_a_closed_log_is_read_again_after_a_restart(opened: Opened) -> None:
    _, log = opened()
    log.append(entries(1, 9)).result(PATIENCE_SECONDS)
    log.close()
    with pytest.raises(LogClosedError):
        log.append(entries(10, 10))
    assert opened()[1].read(range(99)) == entries(1, 9)


# --- ra_log_segments ---


def test_minor_and_major_leave_exactly_what_is_live(opened: Opened) -> None:
    """`basics` and `minor`: two dead segments go after the snapshot, the first one shrinks to its live entries."""
    system, log = opened()
    log.append(entries(1, 128 * 4)).result(PATIENCE_SECONDS)
    flush(system)
    assert len(regular_segments(log.directory)) == 4
    snapshot(log, 128 * 3, "7,9,50")
    flush(system)
    system.compact("log").result(PATIENCE_SECONDS)
    assert [read_segment(log.directory / name).count for name in regular_segments(log.directory)] == [3, 128]
    assert list(opened()[1].indexes()) == [7, 9, 50, *range(128 * 3 + 1, 128 * 4 + 1)]


def test_a_dense_segment_breaks_groups_and_names_become_links(opened: Opened) -> None:
    """`major`: every third entry is live, but for the fourth segment, which is live as a whole."""
    system, log = opened()
    log.append(entries(1, 640)).result(PATIENCE_SECONDS)
    flush(system)
    live = LiveSet.from_indexes([i for i in range(1, 513) if i % 3 == 0 or 385 <= i <= 512])
    log.snapshot(512, 1, STATE, live).result(PATIENCE_SECONDS)
    system.compact("log").result(PATIENCE_SECONDS)
    assert [read_segment(log.directory / name).count for name in regular_segments(log.directory)] == [128, 128, 128]
    assert list(log.indexes()) == [*live, *range(513, 641)]


def test_overwrites_keep_their_terms_through_compactions(opened: Opened) -> None:
    """`overwrite`: 1..500 of term 1, 200..700 of term 2, opened again, then minor and major at 600."""
    system, log = opened()
    log.append(entries(1, 500)).result(PATIENCE_SECONDS)
    flush(system)
    log.append(entries(200, 700, term=2)).result(PATIENCE_SECONDS)
    flush(system)
    system, log = opened()
    live = LiveSet.from_indexes(range(10, 600, 10))
    log.snapshot(600, 2, STATE, live).result(PATIENCE_SECONDS)
    system.compact("log").result(PATIENCE_SECONDS)
    for _ in range(2):
        found = log.read(range(1000))
        assert [entry.index for entry in found] == [*live, *range(601, 701)]
        assert all(entry.term == (1 if entry.index < 200 else 2) for entry in found)
        system, log = opened()


# --- ra_kv ---


def test_one_key_is_overwritten_ten_thousand_times(opened: Opened) -> None:
    """Values stay in the log: of each key the last write is live, whatever was rolled, compacted and opened again."""
    system, log = opened()
    dice, last, index = Random(5), dict.fromkeys(range(5), 0), 0
    for _ in range(10):
        batch = [LogEntry(index + 1 + n, 1, b"%d" % (index + 1 + n)) for n in range(1000)]
        log.append(batch).result(PATIENCE_SECONDS)
        for entry in batch:
            last[0 if dice.random() < 0.99 else dice.randrange(1, 5)] = entry.index
        index += 1000
        live = LiveSet.from_indexes(value for value in last.values() if value)
        log.snapshot(index, 1, STATE, live).result(PATIENCE_SECONDS)
        if dice.random() < 0.5:
            flush(system)
            system.compact("log").result(PATIENCE_SECONDS)
        if dice.random() < 0.3:
            system, log = opened()
        assert log.read(live) == [LogEntry(item, 1, b"%d" % item) for item in live]
    flush(system)
    assert len(regular_segments(log.directory)) <= 6


# Logs that Ra wrote are opened, read, continued and snapshotted; all of it decodes as before, and as Ra's own.

Restore = Callable[[str, list[dict[str, Any]]], Path]
Manifest = Callable[[str], dict[str, Any]]


def read_back(log: Log) -> list[tuple[int, int, int, str]]:
    return [(e.index, e.term, len(e.payload), hashlib.sha256(e.payload).hexdigest()) for e in log.read(log.indexes())]


def of_ra(rows: list[dict[str, Any]], needs: Callable[[int], bool]) -> list[tuple[int, int, int, str]]:
    return [(row["idx"], row["term"], row["size"], row["sha256"]) for row in rows if needs(row["idx"])]


def added(first: int, count: int, term: int) -> list[LogEntry]:
    return [
        LogEntry(index, term, b"\x83m\x00\x00\x00\x04%4d" % (index % 10000)) for index in range(first, first + count)
    ]


@pytest.mark.fixtures
@pytest.mark.parametrize(
    ("part", "files"), [("before", "files"), ("after_minor", "minor_files"), ("after", "after_files")]
)
def test_a_log_with_a_snapshot_is_continued(
    manifest: Manifest, restored: Restore, tmp_path: Path, part: str, files: str
) -> None:
    """Before Ra's compaction, after a minor and after a major one: to one and the same content."""
    facts = manifest("03a-major-module")
    directory = restored(f"03a-major-module/{part}", facts[files])
    live = live_set(facts["live_indexes"])
    with LogSystem(tmp_path) as system:
        log = system.open_log(directory.name)
        row = log.state.row
        assert (row.snapshot_index, row.snapshot_term, row.live) == (1714, 4, live)
        expected = of_ra(facts["after_ra_readback"], row.needs)
        assert read_back(log) == expected
        last, term = log.last or (0, 0)
        more = added(last + 1, 300, term + 1)
        log.append(more).result(PATIENCE_SECONDS)
        log.append(added(last + 51, 10, term + 2)).result(PATIENCE_SECONDS)
        log.snapshot(last + 5, term + 1, b"\x83j", live.clip(0, 900)).result(PATIENCE_SECONDS)
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)
        after = read_back(log)
    kept = [row for row in expected if row[0] in live.clip(0, 900)]
    own = [*more[5:50], *added(last + 51, 10, term + 2)]
    assert after == kept + [(e.index, e.term, len(e.payload), hashlib.sha256(e.payload).hexdigest()) for e in own]
    with LogSystem(tmp_path) as system:
        assert read_back(system.open_log(directory.name)) == after
    # The bytes are those of a log as this library, which reads Ra's, reads any other.
    state = open_log(directory)
    assert state.snapshot_index == last + 5
    assert [index for index, *_ in after] == _readable(state)


def _readable(state: LogState) -> list[int]:
    found = [int(i) for ref in state.refs for i in state.segment(ref.name).idx[state.readable(ref)]]
    assert state.live is not None
    return [i for i in found if i in (state.live or ()) or i > (state.snapshot_index or 0)]


@pytest.mark.fixtures
@pytest.mark.parametrize("name", ["02a-overwrite-same-segment", "02b-overwrite-across-segments", "01b-version1"])
def test_overwritten_and_old_segments_are_continued(
    manifest: Manifest, restored: Restore, tmp_path: Path, name: str
) -> None:
    facts = manifest(name)
    directory = restored(f"{name}/dir", facts["files"])
    with LogSystem(tmp_path) as system:
        log = system.open_log(directory.name)
        expected = of_ra(facts["ra_readback"], lambda index: True)
        assert read_back(log) == expected
        last = log.last
        assert last is not None
        log.append(added(last.index + 1, 40, last.term)).result(PATIENCE_SECONDS)
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)
        assert read_back(log)[: len(expected)] == expected
        assert log.indexes().last == last.index + 40


@pytest.mark.fixtures
def test_a_crashed_compaction_of_ra_is_read_as_it_was(manifest: Manifest, restored: Restore, tmp_path: Path) -> None:
    """Marker and half a copy beside the segments: the entries are those before the compaction."""
    facts = manifest("04-crashed-compaction/d-compacting-complete")
    directory = restored("04-crashed-compaction/d-compacting-complete/crashed", facts.get("crashed_files", []))
    base = restored("04-crashed-compaction/base-two", [])
    with LogSystem(tmp_path) as system:
        log, before = system.open_log(directory.name), system.open_log(base.name)
        wanted = {row[0]: row for row in read_back(before)}
        found = {row[0]: row for row in read_back(log)}
        live = [index for index in facts.get("live_indexes", wanted) if isinstance(index, int)]
        assert live
        assert [found.get(index) for index in live] == [wanted[index] for index in live]


@pytest.mark.fixtures
def test_the_random_histories_are_written_by_the_system(manifest: Manifest, tmp_path: Path) -> None:
    """The first rounds of Ra's histories, through the write-ahead log: the entries that Ra's segments held."""
    for case in manifest("06-random-cases")["cases"][:12]:
        direct = tmp_path / f"direct{case['id']}"
        direct.mkdir()
        append_random_steps(direct, case, case["rounds"][0]["steps"])
        with LogSystem(tmp_path / f"system{case['id']}") as system:
            log = system.open_log("log")
            for first, last, term in case["rounds"][0]["steps"]:
                source = tmp_path / f"step{case['id']}"
                log.append(_step(source, case, (first, last, term))).result(PATIENCE_SECONDS)
            system.roll().result(PATIENCE_SECONDS)
            assert system.drain(PATIENCE_SECONDS)
            expected = [(e.index, e.term, e.payload) for e in _entries(direct)]
            assert [tuple(e) for e in log.read(log.indexes())] == expected


def _step(directory: Path, case: dict[str, Any], step: tuple[int, int, int]) -> list[LogEntry]:
    """The entries of one step, by way of a throw-away log."""
    directory.mkdir()
    append_random_steps(directory, case, [step])
    found = [LogEntry(e.index, e.term, e.payload) for e in _entries(directory)]
    shutil.rmtree(directory)
    return found


def _entries(directory: Path) -> list[LogEntry]:
    return [LogEntry(e.index, e.term, e.payload) for e in iter_entries(open_log(directory))]


@pytest.mark.fixtures
def test_a_snapshot_without_indexes_is_refused(manifest: Manifest, restored: Restore, tmp_path: Path) -> None:
    facts = manifest("03a-major-module")
    directory = restored("03a-major-module/before", facts["files"])
    for path in directory.rglob("indexes"):
        path.unlink()
    with LogSystem(tmp_path) as system:
        with pytest.raises(LiveSetUnknownError):
            system.open_log(directory.name)
        log = system.open_log(directory.name, rebuild_live=lambda snapshot: LiveSet.parse("1,9,17"))
        assert log.read([1, 9, 17, 25])[-1].index == 17
