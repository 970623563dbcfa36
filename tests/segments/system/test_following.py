"""A log that is compacted by others while it is read and written: it follows by names and inodes, without a notice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compaction.segments import sweep
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.moves import Moves, read_moves
from compaction.segments.clump.running_owner import clump_own_log
from compaction.segments.commit import fence
from compaction.segments.directory.fs import regular_segments
from compaction.segments.errors import ClumpRefusedError, EntryMissingError, LogChangedError, VerificationFailedError
from compaction.segments.memtable import LogEntry, LogPosition
from compaction.segments.model import segment_name
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import read_segments
from compaction.segments.rewriting.compact import CompactionRequest, LogCompaction, compact_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import segments as segments_module
from compaction.segments.system.compactions import OwnerCompaction
from compaction.segments.system.log import Log
from compaction.segments.system.segment_changes import SegmentChanges
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.writer import NewSegments
from support.clocks import PATIENCE_SECONDS

LIMITS = SystemLimits(segments=NewSegments(max_count=8), compaction=OwnerCompaction(phase_one=False))
LIVE = LiveSet.parse("1,5,9,13,17,21,25,29,33,37")
KEPT = [*LIVE, *range(41, 61)]


def entries(*indexes: int) -> list[LogEntry]:
    return [LogEntry(index, 1, b"entry %d " % index * 5) for index in indexes]


def flush(system: LogSystem) -> None:
    system.roll().result(PATIENCE_SECONDS)
    assert system.drain(PATIENCE_SECONDS)


class Owner:
    """A system with one log of segments 1 to 7, at snapshot 40 every fourth entry live, the last ones in segment 8; and
    what it reported.
    """

    def __init__(self, directory: Path) -> None:
        self.reported: list[SegmentChanges] = []
        self.system = LogSystem(directory, limits=LIMITS, on_change=self.reported.append)
        self.log = self.system.open_log("a")
        self.log.append(entries(*range(1, 61))).result(PATIENCE_SECONDS)
        flush(self.system)
        self.log.snapshot(40, 1, b"\x83j", LIVE).result(PATIENCE_SECONDS)
        self.reported.clear()

    def compact(self) -> LogCompaction:
        """As another process does it: nothing tells the log."""
        return compact_log(self.log.directory, CompactionRequest("other", SegmentLimits(max_entries=8)))

    def sweep(self) -> None:
        sweep.sweep(self.log.directory, grace_seconds=0)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "system")
    with owner.system:
        yield owner


def read_through(log: Log, act: Callable[[], Any], indexes: range, monkeypatch: pytest.MonkeyPatch) -> list[LogEntry]:
    """Read, and `act` after the first file has been read, before the next one is opened."""
    read, acted = segments_module._read, list[int]()

    def reading(segment: Any, rows: Any) -> Any:
        found = read(segment, rows)
        if not acted:
            acted.append(1)
            act()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(segments_module, "_read", reading)
        result = log.read(indexes)
    assert acted == [1]
    return result


def test_a_read_that_began_before_a_commit_ends_after_it(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    view = owner.log.segments.view

    def commit() -> None:
        done = owner.compact()
        assert [receipt.linked for receipt in done.receipts] == [
            (segment_name(2), segment_name(3), segment_name(4)), (),
        ]  # fmt: skip

    assert read_through(owner.log, commit, range(100), monkeypatch) == entries(*KEPT)
    # What the reader found out, the log knows: the next one begins with the new list.
    assert owner.log.segments.view is not view
    assert sorted(owner.log.segments.view.links) == [segment_name(2), segment_name(3), segment_name(4)]
    assert [(item.rewritten, item.linked) for item in owner.reported] == [
        ((segment_name(1), segment_name(5)), (segment_name(2), segment_name(3), segment_name(4)))
    ]
    # The view it began with is no worse for it.
    assert sorted(view.read(list(LIVE))) == list(LIVE)


def test_names_that_were_swept_are_no_loss(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_and_sweep() -> None:
        owner.compact()
        owner.sweep()
        assert not (owner.log.directory / segment_name(3)).is_symlink()

    assert read_through(owner.log, commit_and_sweep, range(100), monkeypatch) == entries(*KEPT)
    assert owner.log.fold(lambda found, entry: [*found, entry.index], list[int]()) == KEPT
    owner.log.refresh()
    assert owner.reported[-1].gone == (segment_name(2), segment_name(3), segment_name(4))


def test_a_segment_that_grew_is_read_with_the_old_list(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        owner.log.append(entries(61, 62)).result(PATIENCE_SECONDS)
        flush(owner.system)

    assert read_through(owner.log, write, range(1, 61), monkeypatch) == entries(*KEPT)
    assert owner.log.read([60, 61, 62]) == entries(60, 61, 62)
    assert owner.reported == [], "a segment that grew is the same segment"


def test_what_died_during_a_read_is_left_out_and_not_called_lost(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_and_compact() -> None:
        owner.log.snapshot(52, 1, b"\x83j", LiveSet.parse("1,5,21,45")).result(PATIENCE_SECONDS)
        owner.compact()
        owner.sweep()

    found = read_through(owner.log, snapshot_and_compact, range(100), monkeypatch)
    # Of the first file, which had been read before, 1 and 5; what has died since may be there or not.
    assert {entry.index for entry in found} >= {1, 5, 21, 45, *range(53, 61)}
    assert [entry for entry in found if entry.index in (9, 13, 17)] == []
    assert owner.log.read(range(100)) == entries(1, 5, 21, 45, *range(53, 61))
    # A live one that is gone is called lost all the same.
    (owner.log.directory / segment_name(1)).unlink()
    with pytest.raises(EntryMissingError):
        owner.log.read([1])


def test_refreshes_side_by_side_never_go_back(owner: Owner) -> None:
    """A flush publishes new segments while readers and notifications refresh: the newest list stays."""
    ended = threading.Event()

    def refresh() -> None:
        while not ended.is_set():
            owner.log.refresh()

    threads = [threading.Thread(target=refresh) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for index in range(61, 121, 4):
            owner.log.append(entries(*range(index, index + 4))).result(PATIENCE_SECONDS)
            flush(owner.system)
            assert owner.log.state.unflushed == 0
            assert owner.log.read(range(61, 200)) == entries(*range(61, index + 4))
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    new = [name for change in owner.reported for name in change.new]
    assert new == sorted(set(new)), "each new segment is reported once, in order"


def test_a_directory_that_never_holds_still_stops_no_flush(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long compaction of a large log changes names during every reading: what was flushed is found later."""
    left = [5]

    def moving(directory: Path, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise LogChangedError(str(directory))
        return read_segments(directory, **options)

    monkeypatch.setattr(segments_module, "read_segments", moving)
    owner.log.append(entries(61, 62)).result(PATIENCE_SECONDS)
    flush(owner.system)
    assert left == [0]
    assert owner.log.state.unflushed == 0
    assert owner.log.read([60, 61, 62]) == entries(60, 61, 62)


def test_who_listens_cannot_stop_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(changes: SegmentChanges) -> None:
        raise RuntimeError("the listener has a defect")

    with LogSystem(tmp_path / "system", on_change=fail) as system:
        log = system.open_log("a")
        log.append(entries(1, 2)).result(PATIENCE_SECONDS)
        flush(system)
        assert log.read([1, 2]) == entries(1, 2)
    assert "the listener has a defect" in caplog.text


# Sparse live entries of a log that its owner writes are appended once more at its head, and the old ones die.

OPTIONS = ClumpOptions(shorter_than=3, min_ranges=2)
CLUMP_LIMITS = SegmentLimits(max_entries=64)


class Machine:
    """Values by key; each is in the log, and `places` says where. `change` may spoil what is appended."""

    def __init__(self, system: LogSystem) -> None:
        self.system = system
        self.log = system.open_log("a")
        self.places: dict[str, int] = {}
        self.change = bytes

    def put(self, key: str, value: str) -> None:
        last = self.log.last
        index = 1 if last is None else last.index + 1
        self.log.append([LogEntry(index, 1, f"{key}={value}".encode())]).result(PATIENCE_SECONDS)
        self.places[key] = index

    def append(self, payloads: Sequence[bytes]) -> list[LogPosition]:
        # Something else comes between.
        self.put("between", "copies")
        last = self.log.last
        assert last is not None
        entries = [LogEntry(last.index + 1 + n, 1, self.change(payload)) for n, payload in enumerate(payloads)]
        self.log.append(entries).result(PATIENCE_SECONDS)
        return [LogPosition(entry.index, entry.term) for entry in entries]

    def adopt(self, moves: Moves) -> None:
        new = dict(zip(moves.old_set, moves.new_set, strict=True))
        self.places = {key: new.get(index, index) for key, index in self.places.items()}
        self.snapshot()

    def snapshot(self) -> None:
        last = self.log.last
        assert last is not None
        self.log.snapshot(last.index, 1, b"\x83j", LiveSet.from_indexes(self.places.values())).result(PATIENCE_SECONDS)

    def values(self) -> dict[str, str]:
        found = {entry.index: entry.payload.decode() for entry in self.log.read(self.places.values())}
        return {key: found[index].partition("=")[2] for key, index in self.places.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Every fifth of 60 entries is live, alone among dead ones."""
    with LogSystem(tmp_path / "system", limits=SystemLimits(segments=NewSegments(max_count=8))) as system:
        machine = Machine(system)
        for number in range(60):
            machine.put(f"key{number}" if number % 5 == 0 else "scratch", f"value {number}")
        system.roll().result(PATIENCE_SECONDS)
        assert system.drain(PATIENCE_SECONDS)
        machine.snapshot()
        yield machine


def test_live_entries_lie_together_at_the_head_and_their_old_segments_are_dead(machine: Machine) -> None:
    values = machine.values()
    result = clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=CLUMP_LIMITS)
    assert machine.values() == values | {"between": "copies"}
    (receipt,) = result.receipts
    assert (receipt.entries, len(read_moves(machine.log.directory))) == (12, 1)
    live = machine.log.state.row.live
    assert live is not None
    assert len(live.ranges) == 1
    # Phase 1 comes after the snapshot that adopts: what held the old entries is gone.
    machine.system._snapshots.submit(int).result(PATIENCE_SECONDS)
    assert segment_name(1) not in regular_segments(machine.log.directory)
    assert all(claim.retired for claim in fence.read(machine.log.directory).jobs.values())


def test_copies_that_differ_are_not_adopted(machine: Machine) -> None:
    values, places = machine.values(), dict(machine.places)
    machine.change = lambda payload: payload + b"!"  # type: ignore[assignment]
    with pytest.raises(VerificationFailedError):
        clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=CLUMP_LIMITS)
    machine.places.pop("between")
    assert (machine.values(), machine.places) == (values, places)


def test_a_machine_that_does_not_adopt_is_noticed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "adopt", lambda moves: None)
    with pytest.raises(ClumpRefusedError, match="still has index 1 live"):
        clump_own_log(machine.system, machine.log, machine, options=OPTIONS, limits=CLUMP_LIMITS)
    assert machine.values()["key0"] == "value 0"
