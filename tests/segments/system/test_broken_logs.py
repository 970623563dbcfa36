"""A log that cannot be opened is kept closed and as it is: its siblings go on, and once its files are restored it holds
all its entries, those that waited in the write-ahead log, too.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments import writer as segment_writer
from compaction.segments.checking.all_checks import problems_of
from compaction.segments.checking.facts import OwnerRule
from compaction.segments.checking.growth import violations
from compaction.segments.checking.reading import read_facts
from compaction.segments.commit.fence import FENCE_FILE
from compaction.segments.directory import fs
from compaction.segments.directory.fs import regular_segments
from compaction.segments.directory.lock import LOCK_FILE
from compaction.segments.errors import (
    BrokenLogError,
    CorruptSegmentError,
    CorruptSnapshotError,
    DamagedWalError,
    FlushFailedError,
    InvalidCutError,
    LogNotReadableError,
    NotALogDirectoryError,
    SegmentLogError,
    StoreIOError,
    UnexpectedLogError,
)
from compaction.segments.following.changes import ChangeKind
from compaction.segments.following.follower import Follower
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.directories import DATA_FILE, INDEXES_FILE, newest_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import opening
from compaction.segments.system import system as system_module
from compaction.segments.system.content import CUT_FILE, LogCut, write_cut
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import HEADER, RecordEncoder
from compaction.segments.wal.files import STOP_FILE, read_stop, wal_files, wal_name
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.wal.wal_reader import read_wal
from compaction.segments.writer import NewSegments, keep_only
from simulation.logs.steps import SteppedSystem
from support.segments.owned_logs import conforms
from support.segments.segment_logs import WAIT, flush, wal_records

LIMITS = SystemLimits(wal=WalLimits(max_entries=9), segments=NewSegments(max_count=8), snapshot_grace=0.0)
SIBLINGS = ("a", "c")
LIVE = LiveSet.parse("2,9,17")


def entries(uid: str, first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(i, term, b"%s %d of %d" % (uid.encode(), i, term)) for i in range(first, last + 1)]


@dataclass
class World:
    """A system of three logs, stopped or killed, of which `b` is to be broken; what each must hold."""

    directory: Path
    held: dict[str, dict[int, LogEntry]] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.directory / "b"

    def note(self, written: list[LogEntry], uid: str) -> list[LogEntry]:
        """An append overwrites from its first index on."""
        content = {index: item for index, item in self.held.get(uid, {}).items() if index < written[0].index}
        self.held[uid] = content | {item.index: item for item in written}
        return written

    def check(self, log: Log) -> None:
        needed = [item for index, item in sorted(self.held[log.name].items()) if log.row.needs(index)]
        assert log.read(range(999)) == needed
        assert log.last is not None
        assert log.last.index == max(self.held[log.name])

    def append(self, system: LogSystem, uid: str, first: int, last: int, term: int) -> None:
        system.open_log(uid).append(self.note(entries(uid, first, last, term), uid)).result(WAIT)

    def killed(self) -> None:
        """The directory as a kill at this moment leaves it."""
        copy = self.directory.with_name(f"{self.directory.name}-killed")
        shutil.copytree(self.directory, copy, symlinks=True)
        self.directory = copy


def make_world(directory: Path) -> World:
    """Each log has three segments, a snapshot at 20 and entries 25 to 40 in segments. In three files of the write-ahead
    log, all logs in each, wait: 41 to 44; then 43 to 46 of term 2, which go back; then 47 to 49.
    """
    world = World(directory)
    with LogSystem(directory, limits=LIMITS) as system:
        for uid in ("a", "b", "c"):
            world.append(system, uid, 1, 40, 1)
        flush(system)
        for uid in ("a", "b", "c"):
            system.open_log(uid).snapshot(20, 1, b"\x83j", LIVE).result(WAIT)
    stepped = SteppedSystem(directory, SystemLimits(segments=LIMITS.segments, rolled_files=9), time.time)
    assert stepped.system.drain()
    with stepped.patient():
        for first, last, term in ((41, 44, 1), (43, 46, 2), (47, 49, 2)):
            futures = [
                stepped.system.open_log(uid).append(world.note(entries(uid, first, last, term), uid))
                for uid in ("a", "b", "c")
            ]
            while not all(future.done() for future in futures):
                assert stepped.threads["write-ahead log"]()
            rolled = stepped.system.roll()
            assert stepped.threads["write-ahead log"]()
            assert rolled.done()
    stepped.close()
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(tmp_path / "system")
    assert [len(wal_records(path)) for path in wal_files(world.directory)] == [12, 12, 9, 0]
    return world


def newest_segment(log: Path) -> Path:
    return log / regular_segments(log)[-1]


def oldest_segment(log: Path) -> Path:
    return log / regular_segments(log)[0]


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 30)


def cut_to_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_in_its_header(path: Path) -> None:
    os.truncate(path, 4)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path) -> None:
    path.write_bytes(b"\xa7\x01garbage" * 99)


def remove(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    # A name of no log.
    target = path.with_name(".elsewhere")
    path.rename(target)
    path.symlink_to(target)


def snapshot_file(name: str) -> Callable[[Path], Path]:
    def find(log: Path) -> Path:
        newest = newest_snapshot(log)
        assert newest is not None
        return newest.path / name

    return find


def with_a_cut(log: Path) -> Path:
    write_cut(log, LogCut(999, 1))
    return log / CUT_FILE


def with_a_fence(log: Path) -> Path:
    """A half-done compaction, which makes the owner read the fence."""
    (log / "0000000000000001-0000000000000002.job.1.partial").write_bytes(b"")
    (log / "0000000000000001.link").symlink_to("nothing")
    return log / FENCE_FILE


def the_log(log: Path) -> Path:
    return log


def as_a_file(log: Path) -> None:
    shutil.rmtree(log)
    log.write_bytes(b"in place of a directory")


def the_snapshots(log: Path) -> Path:
    return log / "snapshots"


Find = Callable[[Path], Path]
DAMAGES: list[tuple[Find, Callable[[Path], None], type[SegmentLogError]]] = [
    (newest_segment, cut_off, CorruptSegmentError),
    (newest_segment, cut_to_half, CorruptSegmentError),
    (newest_segment, zero, CorruptSegmentError),
    (newest_segment, garbage, CorruptSegmentError),
    (oldest_segment, cut_in_its_header, CorruptSegmentError),
    (oldest_segment, empty, CorruptSegmentError),
    (oldest_segment, zero, CorruptSegmentError),
    (oldest_segment, garbage, CorruptSegmentError),
    (snapshot_file(DATA_FILE), cut_off, CorruptSnapshotError),
    (snapshot_file(DATA_FILE), empty, CorruptSnapshotError),
    (snapshot_file(DATA_FILE), zero, CorruptSnapshotError),
    (snapshot_file(DATA_FILE), garbage, CorruptSnapshotError),
    (snapshot_file(DATA_FILE), remove, CorruptSnapshotError),
    (snapshot_file(DATA_FILE), link, CorruptSnapshotError),
    (the_snapshots, link, CorruptSnapshotError),
    (with_a_cut, cut_in_its_header, InvalidCutError),
    (with_a_cut, empty, InvalidCutError),
    (with_a_cut, garbage, InvalidCutError),
    (with_a_fence, garbage, SegmentLogError),
    (the_log, link, NotALogDirectoryError),
    (the_log, as_a_file, NotALogDirectoryError),
]


def restore(saved: Path, log: Path) -> None:
    if log.is_symlink() or log.is_file():
        log.unlink()
    else:
        shutil.rmtree(log)
    shutil.copytree(saved, log, symlinks=True)


def tree(log: Path) -> dict[Path, bytes | str]:
    """Everything below a log's directory, or in its place."""
    found: dict[Path, bytes | str] = {}
    for path in (log, *log.rglob("*")):
        if path.name != LOCK_FILE and not (path.is_dir() and not path.is_symlink()):
            found[path.relative_to(log)] = os.readlink(path) if path.is_symlink() else path.read_bytes()
    return found


def waiting(directory: Path) -> list[tuple[int, int, bytes, bool]]:
    """What the write-ahead log holds of the broken log, in order."""
    records = [record for path in wal_files(directory) for record in wal_records(path)]
    return [(record.index, record.term, record.payload, record.truncate) for record in records if record.writer == b"b"]


def go_on(world: World, system: LogSystem, term: int) -> None:
    """The siblings are whole, go back, are written over several files, and compacted by a snapshot."""
    for uid in SIBLINGS:
        world.check(system.open_log(uid))
        last = max(world.held[uid])
        world.append(system, uid, last - 1, last + 11, term)
        world.append(system, uid, last + 12, last + 14, term)
    flush(system)
    for uid in SIBLINGS:
        world.check(system.open_log(uid))


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize(("find", "damage", "error"), DAMAGES)
def test_siblings_go_on_and_nothing_of_a_broken_log_is_lost(
    world: World, find: Find, damage: Callable[[Path], None], error: type[SegmentLogError], kill: bool
) -> None:
    if kill:
        (world.directory / STOP_FILE).unlink()
    path = find(world.log)
    saved = shutil.copytree(world.log, world.directory.with_name("saved"), symlinks=True)
    damage(path)
    entries_of_b = waiting(world.directory)
    assert len(entries_of_b) == 11
    for term in (3, 4, 5):
        # Whatever the sum of kills has made of the directory: the log is where it was copied to.
        before = tree(world.log)
        with LogSystem(world.directory, limits=LIMITS) as system:
            assert list(system.broken) == ["b"]
            assert isinstance(system.broken["b"], error)
            assert system.uids == ["a", "b", "c"]
            for refused in (system.open_log, system.compact):
                with pytest.raises(BrokenLogError, match=r"/b: the log is kept closed: .*restore.* open it again$"):
                    refused("b")
            go_on(world, system, term)
            # Siblings' records, and files without any of the log, go as before.
            left = wal_files(world.directory)
            assert all(record.writer == b"b" for file in left[:-1] for record in wal_records(file))
            assert len(left) == 4
            assert waiting(world.directory) == entries_of_b
            assert tree(world.log) == before
            if kill:
                world.killed()
        if not kill:
            assert read_stop(world.directory).keys() == {file.name for file in wal_files(world.directory)}
    restore(saved, world.log)
    for term in (6, 7):
        with LogSystem(world.directory, limits=LIMITS) as system:
            assert not system.broken
            world.check(system.open_log("b"))
            assert system.drain(WAIT)
            world.check(system.open_log("b"))
            world.append(system, "b", max(world.held["b"]) + 1, max(world.held["b"]) + 9, term)
            go_on(world, system, term)
            assert len(wal_files(world.directory)) == 1
    conforms(world.directory)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (PermissionError(13, "Permission denied"), SegmentLogError),
        (OSError(5, "Input/output error"), StoreIOError),
        (ZeroDivisionError("a bug"), UnexpectedLogError),
        (MemoryError(), UnexpectedLogError),
    ],
)
@pytest.mark.parametrize(
    "step", ["find_snapshots", "read_cut", "read_segments", "repair_last", "settle", "older_snapshots"]
)
def test_whatever_fails_at_one_log_is_its_own_refusal(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    error: type[SegmentLogError],
    step: str,
) -> None:
    entries_of_b = waiting(world.directory)
    before = tree(world.log)
    module = system_module if step == "older_snapshots" else opening
    original = getattr(module, step)

    def fail(directory: Path, *args: object, **options: object) -> object:
        if directory.name == "b":
            raise failure
        return original(directory, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, fail)
        with LogSystem(world.directory, limits=LIMITS) as system:
            assert isinstance(system.broken["b"], error)
            go_on(world, system, 3)
            assert waiting(world.directory) == entries_of_b
            assert tree(world.log) == before
    assert f"{world.log}: the log is kept closed: " in caplog.text
    assert ("ZeroDivisionError: a bug" in caplog.text) == isinstance(failure, ZeroDivisionError)
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert not system.broken
        world.check(system.open_log("b"))


def test_records_that_cannot_be_put_into_mem_tables_are_the_refusal_of_their_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries_of_b = waiting(world.directory)
    original = opening._put

    def fail(log: Log, *args: Any) -> None:
        if log.name == "b":
            raise ValueError("a bug")
        original(log, *args)

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_put", fail)
        with LogSystem(world.directory, limits=LIMITS) as system:
            assert isinstance(system.broken["b"], UnexpectedLogError)
            go_on(world, system, 3)
            assert waiting(world.directory) == entries_of_b
    with LogSystem(world.directory, limits=LIMITS) as system:
        world.check(system.open_log("b"))


def test_a_log_without_read_permission_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything: so the system call is told to refuse."""
    original = os.open
    refused = str(newest_segment(world.log))

    def deny(path: str | Path, *args: int, **options: int) -> int:
        if str(path) == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", deny)
        patch.setattr(os, "access", lambda path, mode, **_: str(path) != refused)
        with LogSystem(world.directory, limits=LIMITS) as system:
            assert isinstance(system.broken["b"], LogNotReadableError)
            assert refused in str(system.broken["b"])
            go_on(world, system, 3)
    with LogSystem(world.directory, limits=LIMITS) as system:
        world.check(system.open_log("b"))


def test_two_broken_logs_are_repaired_one_after_the_other(world: World) -> None:
    originals = {uid: newest_segment(world.directory / uid).read_bytes() for uid in ("b", "c")}
    for uid in originals:
        garbage(newest_segment(world.directory / uid))
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert list(system.broken) == ["b", "c"]
        assert system.drain(WAIT)
    newest_segment(world.log).write_bytes(originals["b"])
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert list(system.broken) == ["c"]
        world.check(system.open_log("b"))
        assert system.drain(WAIT)
        world.check(system.open_log("b"))
        # What was flushed of `b` must not come back from the files that `c` keeps.
        world.append(system, "b", 45, 60, 5)
        flush(system)
        assert {record.writer for file in wal_files(world.directory) for record in wal_records(file)} == {b"c"}
    newest_segment(world.directory / "c").write_bytes(originals["c"])
    with LogSystem(world.directory, limits=LIMITS) as system:
        for uid in ("a", "b", "c"):
            world.check(system.open_log(uid))
        assert system.drain(WAIT)
        assert len(wal_files(world.directory)) == 1


def test_a_log_that_was_given_up_is_deleted_with_its_records(world: World) -> None:
    garbage(newest_segment(world.log))
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert system.drain(WAIT)
    assert len(waiting(world.directory)) == 11
    shutil.rmtree(world.log)
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert system.uids == ["a", "c"]
        assert system.drain(WAIT)
        assert waiting(world.directory) == []
        assert system.open_log("b").append(entries("b", 1, 3)).result(WAIT).index == 3


def test_a_missing_live_set_is_the_refusal_of_its_log_until_its_owner_computes_it(world: World) -> None:
    """Its entries go to segments: everything is kept, so nothing depends on what is live."""
    path = snapshot_file(INDEXES_FILE)(world.log)
    data = path.read_bytes()
    for damage in (remove, garbage):
        damage(path)
        with LogSystem(world.directory, limits=LIMITS) as system:
            with pytest.raises(SegmentLogError, match="live"):
                system.open_log("b")
            assert not system.broken
            go_on(world, system, 3 if damage is remove else 4)
    path.write_bytes(data)
    with LogSystem(world.directory, limits=LIMITS) as system:
        world.check(system.open_log("b"))


def test_damage_of_the_shared_write_ahead_log_is_the_refusal_of_all(world: World) -> None:
    garbage(newest_segment(world.log))
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert system.drain(WAIT)
    path = wal_files(world.directory)[1]
    data = path.read_bytes()
    # Of a file that holds nothing but the broken log's records as well, after a clean stop and after a kill.
    for bad in (data[:-1], data[:60] + b"\xff" + data[61:]):
        path.write_bytes(bad)
        with pytest.raises(DamagedWalError, match=path.name):
            LogSystem(world.directory, limits=LIMITS)
    (world.directory / STOP_FILE).unlink()
    with pytest.raises(DamagedWalError, match=path.name):
        LogSystem(world.directory, limits=LIMITS)
    path.write_bytes(data)
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert list(system.broken) == ["b"]


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9), st.integers(1, 3), st.booleans()), max_size=40
    ),
    st.sets(st.sampled_from([b"a", b"b", b"c"]), min_size=1),
    st.integers(0, 20),
)
def test_of_a_held_file_the_records_of_broken_logs_stay_as_they_are(
    records: list[tuple[bytes, int, int, bool]], broken: set[bytes], torn: int
) -> None:
    """In their order, with their truncate flags, whatever lies between them; again and again."""
    encoder, parts = RecordEncoder(), [HEADER]
    for number, (uid, index, term, truncate) in enumerate(records):
        payload = b"payload %d" % number
        parts += [encoder.head(uid, index, term, payload, truncate=truncate), payload]
    with TemporaryDirectory() as directory:
        path = Path(directory) / wal_name(7)
        path.write_bytes(b"".join(parts) + b"\x01" * torn)

        def held() -> dict[bytes, list[tuple[int, int, bytes, bool]]]:
            found: dict[bytes, list[tuple[int, int, bytes, bool]]] = {}
            for record in wal_records(path):
                found.setdefault(record.writer, []).append((record.index, record.term, record.payload, record.truncate))
            return found

        expected = {uid: own for uid, own in held().items() if uid in broken}
        for _ in range(2):
            end = keep_only(path, broken)
            assert end == (path.stat().st_size, path.stat().st_size)
            with read_wal(path) as reader:
                assert len(list(reader)) == sum(map(len, expected.values()))
                assert reader.is_held
                assert reader.tail is None
                assert reader.end == end.whole
            assert held() == expected


def test_a_file_that_cannot_be_replaced_stays_and_stops_the_flush(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = newest_segment(world.log).read_bytes()
    garbage(newest_segment(world.log))
    first = wal_files(world.directory)[0]
    before = first.read_bytes()

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(fs, name)

        def rename(self, *_: Path) -> None:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segment_writer, "fs", Full())
        # The segment writer may have failed before the next file is handed to it, while the system is being opened.
        with (
            pytest.raises(FlushFailedError, match=f"{first.name}.*No space left"),
            LogSystem(world.directory, limits=LIMITS) as system,
        ):
            system.drain(WAIT)
        assert first.read_bytes() == before
    assert first.with_suffix(".tmp").exists()
    newest_segment(world.log).write_bytes(original)
    with LogSystem(world.directory, limits=LIMITS) as system:
        assert not first.with_suffix(".tmp").exists()
        for uid in ("a", "b", "c"):
            world.check(system.open_log(uid))


def test_rules_and_followers_know_files_that_wait_for_a_broken_log(world: World) -> None:
    garbage(newest_segment(world.log))
    follower = Follower(world.directory)
    assert [item.log for item in follower.poll() if item.kind is ChangeKind.UNREADABLE] == ["b"]
    before = read_facts(world.directory)
    known = set(problems_of(before))
    assert {item.path for item in known if not item.note} == {str(newest_segment(world.log))}
    with LogSystem(world.directory, limits=LIMITS) as system:
        go_on(world, system, 3)
        after = read_facts(world.directory)
        assert [violation for violation in violations(before, after) if not violation.note] == []
        found = [problem for problem in problems_of(after) if problem not in known]
        left = wal_files(world.directory)
        assert {(Path(item.path).name, item.rule, item.note) for item in found} == {
            (path.name, OwnerRule.WAL_WRITERS, True) for path in left[:-1]
        }
        assert all("records of 'b' wait in it" in item.what for item in found)
        changes = [*follower.poll(), *follower.poll()]
        assert {change.log for change in changes} == {"", *SIBLINGS}
        assert {change.kind for change in changes if not change.log} == {ChangeKind.ROLLED, ChangeKind.EMPTIED}
    # Who begins now sees the entries that wait.
    assert [(item.log, item.kind) for item in Follower(world.directory).poll() if item.file == left[0].name] == [
        ("b", ChangeKind.WRITTEN), ("", ChangeKind.ROLLED),
    ]  # fmt: skip
