"""What is damaged, or may hold what is missing, is named and kept: nobody takes an empty file for a dead one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.commit.commit import commit_unreferenced
from compaction.segments.directory.fs import regular_segments
from compaction.segments.errors import CorruptSegmentError, LiveEntriesMissingError, SegmentLogError
from compaction.segments.format import etf
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.memtable import LogEntry
from compaction.segments.model import segment_name
from compaction.segments.planning.plan import LeftAloneReason, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits, find_dead
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting.compact import CompactionRequest, compact_log
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.system import LogSystem
from support.segments.segment_logs import write_wal

VICTIM = segment_name(3)
REQUEST = CompactionRequest("test", SegmentLimits())
Damage = Callable[[Path], None]


def patched(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), data, at)


def room_for_nothing(path: Path) -> None:
    patched(path, 6, bytes(2))


def first_slot_cleared(path: Path) -> None:
    patched(path, 8, bytes(32))


def slot_cleared(path: Path) -> None:
    patched(path, 8 + 4 * 32, bytes(32))


def last_slot_cleared(path: Path) -> None:
    patched(path, 8 + 7 * 32, bytes(32))


def first_page_cleared(path: Path) -> None:
    patched(path, 0, bytes(4096))


def first_page_cleared_but_the_header(path: Path) -> None:
    patched(path, 8, bytes(4088))


def cut_to_its_header(path: Path) -> None:
    os.truncate(path, 8)


def cut_in_its_index(path: Path) -> None:
    os.truncate(path, 8 + 4 * 32)


def cut_behind_a_payload(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 600)


def fewer_slots(path: Path) -> None:
    patched(path, 6, (5).to_bytes(2, "big"))


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"of nobody")


DAMAGES: list[Damage] = [
    room_for_nothing, first_slot_cleared, slot_cleared, last_slot_cleared, first_page_cleared,
    first_page_cleared_but_the_header, cut_to_its_header, cut_in_its_index, cut_behind_a_payload, fewer_slots, longer,
]  # fmt: skip
UNSEEN = [cut_to_its_header]
"""Damage that leaves a whole segment without entries: only what is live tells it from one."""


def make_log(directory: Path, live: str) -> Path:
    """Six segments of 8 entries of 600 bytes; a snapshot at 40, below the last one."""
    with LogWriter(directory, max_count=8, sync=False) as writer:
        for index in range(1, 49):
            writer.append(index, 1, b"%03d" % index * 200)
    write_snapshot(directory, index=40, term=1, live=LiveSet.parse(live), sync=False)
    return directory


def everything(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.segment") if not path.is_symlink()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_named_by_all_and_deleted_by_none(tmp_path: Path, damage: Damage) -> None:
    """Entry 22 of it is live; the rest of the log is as dead as it can be."""
    log = make_log(tmp_path / "system" / "log", "1,22,33")
    damage(log / VICTIM)
    before = everything(log)
    said = complaints(lambda: compact_log(log, REQUEST).failures)
    names = (str(log),) if damage in UNSEEN else (str(log / VICTIM), f"{log}: 1 live entry")
    assert said
    assert all(text.startswith(names) for text in said), said
    assert all(VICTIM in text for text in complaints(lambda: swept(log)))
    assert {error.path for error in sense_root(tmp_path, SenseSettings()).errors} == {log}
    assert all(text.startswith(names) for text in complaints(lambda: owned(tmp_path / "system")))
    assert (log / VICTIM).read_bytes() == before[VICTIM]
    if said[-1].startswith(f"{log}: 1 live entry"):
        assert before.items() <= everything(log).items()


def complaints(act: Callable[[], Iterable[SegmentLogError]]) -> list[str]:
    """What it returns as errors, and what it raises."""
    try:
        return [str(error) for error in act()]
    except SegmentLogError as error:
        return [str(error)]


def swept(log: Path) -> tuple[()]:
    sweep.sweep(log, grace_seconds=0.0)
    return ()


def owned(directory: Path) -> Iterator[SegmentLogError]:
    """The owner writes, compacts, and takes a snapshot, after which it deletes what is dead."""
    with LogSystem(directory) as system:
        yield from system.broken.values()
        if system.broken:
            return
        log = system.open_log("log")
        log.append([LogEntry(49, 1, b"x")]).result()
        yield from system.compact("log").result().done.failures
        log.snapshot(41, 1, b"\x83j", LiveSet.parse("1,22,33")).result()


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage not in UNSEEN])
def test_damage_is_never_dead(tmp_path: Path, damage: Damage) -> None:
    """Nothing of it is live, so nothing is missing, and the other dead segments go."""
    log = make_log(tmp_path / "log", "2,10,34")
    damage(log / VICTIM)
    if damage in (room_for_nothing, first_page_cleared):
        with pytest.raises(CorruptSegmentError, match=VICTIM):
            open_log(log)
        return
    state = open_log(log)
    assert state.live is not None
    assert not state.missing
    assert set(find_dead(state, state.live)) == {segment_name(4)}
    plan = plan_log(state, SegmentLimits())
    assert {each.name: each.reason for each in plan.left_alone}[VICTIM] is LeftAloneReason.DAMAGED
    assert not any(VICTIM in (*group.sources, *group.carried) for group in plan.groups)
    (failure,) = compact_log(log, REQUEST).failures
    assert str(failure).startswith(f"{log / VICTIM}: corrupt segment")
    assert segment_name(4) in {item.name for item in sweep.sweep(log, grace_seconds=0.0).deleted}
    assert (log / VICTIM).is_file()


def test_an_empty_segment_is_dead_only_while_nothing_is_missing(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", "2,10,34")
    cut_to_its_header(log / VICTIM)
    state = open_log(log)
    assert state.live is not None
    assert VICTIM in find_dead(state, state.live)
    missing = open_log(log, snapshot_index=40, live=LiveSet.parse("2,22"))
    assert missing.live is not None
    assert find_dead(missing, missing.live) == {}
    assert {item.reason for item in plan_log(missing, SegmentLimits()).left_alone} == {"LiveEntriesMissing"}
    write_wal(tmp_path, 1, [(b"log", LogEntry(22, 1, b"waits"))])
    waits = open_log(log, snapshot_index=40, live=LiveSet.parse("2,22"))
    assert waits.live is not None
    assert VICTIM in find_dead(waits, waits.live)


def test_while_entries_are_missing_nobody_deletes(tmp_path: Path) -> None:
    """Segment 3 is gone. A mark that is due, the output of an old attempt and a torn copy of Ra's stay, named."""
    log = make_log(tmp_path / "log", "1,22,33")
    fence.claim(log, job="job", token=1, holder="test")
    commit_unreferenced(log, job="job", token=1, names=[segment_name(4)], holder="test")
    (log / VICTIM).unlink()
    (log / "0000000000000001-0000000000000002.old.1.partial").write_bytes(b"RASG")
    (log / "0000000000000002.compacting").write_bytes(b"RASG\0\2\0\1")
    (log / "0000000000000002.compaction_group").write_bytes(etf.encode([b"0000000000000002.segment", VICTIM.encode()]))
    before = everything(log)
    done = recovery.recover(log)
    assert [(kept.name, "first index 22" in kept.reason) for kept in done.kept] == [
        ("0000000000000002.compacting", True)
    ]
    swept = sweep.sweep(log, grace_seconds=0.0)
    assert (swept.deleted, {item.name for item in swept.blocked}) == (
        (), {segment_name(4), "0000000000000001-0000000000000002.old.1.partial"},
    )  # fmt: skip
    with pytest.raises(LiveEntriesMissingError, match="first index 22"):
        commit_unreferenced(log, job="job", token=1, names=[segment_name(2)], holder="test")
    assert everything(log) == before


def test_the_owner_deletes_nothing_while_entries_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = make_log(tmp_path / "system" / "log", "1,22,33")
    cut_to_its_header(log / VICTIM)
    before = everything(log)
    with LogSystem(tmp_path / "system") as system:
        opened = system.open_log("log")
        opened.append([LogEntry(index, 1, b"x") for index in range(49, 60)]).result()
        # Live, and only in memory and in the write-ahead log: that is not missing.
        opened.snapshot(55, 1, b"\x83j", LiveSet.parse("1,22,33,50")).result()
    assert before.items() <= everything(log).items()
    assert "1 live entry (first index 22)" in caplog.text
    assert "first index 50" not in caplog.text


def test_what_an_old_file_under_a_new_name_hides_is_not_dead(tmp_path: Path) -> None:
    """A copy of segment 1 as the newest hides all; with one more behind it, it ends below the snapshot itself."""
    log = make_log(tmp_path / "log", "1,3")
    shutil.copy(log / segment_name(1), log / segment_name(7))
    with LogWriter(log, max_count=8, sync=False) as writer:
        writer.append(9, 1, b"behind it")
    state = open_log(log)
    assert state.live is not None
    # Segments 1 to 5 end below the snapshot; 6 holds entries above it, which no later term has dropped.
    assert set(find_dead(state, state.live)) == {segment_name(number) for number in range(1, 6)}
    with LogWriter(log, max_count=8, sync=False) as writer:
        writer.append(10, 2, b"of a new leader")
    state = open_log(log)
    assert state.live is not None
    assert segment_name(6) in find_dead(state, state.live)


def test_slots_behind_a_hole_are_cleared_when_the_write_ahead_log_has_them(tmp_path: Path) -> None:
    """Else the next appends would fill the hole, and bring old records back."""
    with LogSystem(tmp_path) as system:
        log = system.open_log("log").directory
        system.open_log("log").append([LogEntry(index, 1, b"%02d" % index) for index in range(1, 9)]).result()
    wal = {path.name: path.read_bytes() for path in tmp_path.glob("*.wal")}
    with LogSystem(tmp_path) as system:
        assert system.drain(10)
    newest = log / regular_segments(log)[-1]
    for name, data in wal.items():
        (tmp_path / name).write_bytes(data)
    patched(newest, 8 + 4 * 32, bytes(32))
    assert read_segment(newest).is_holed
    with LogSystem(tmp_path) as system:
        assert system.drain(10)
        assert [entry.payload for entry in system.open_log("log").read(range(1, 9))] == [
            b"%02d" % i for i in range(1, 9)
        ]
    assert not read_segment(newest).is_holed
    for path in tmp_path.glob("*.wal"):
        path.unlink()
    patched(newest, 8 + 4 * 32, bytes(32))
    write_wal(tmp_path, 90, [(b"log", LogEntry(9, 1, b"another"))])
    with LogSystem(tmp_path) as system:
        assert isinstance(system.broken["log"], CorruptSegmentError)
        assert "index 2 behind it is only here" in str(system.broken["log"])
