"""Two readings of one directory, some time apart: what an owner may do between them, and what it may not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.segments.checking import reading
from compaction.segments.checking.facts import CHECKLIST, OwnerRule, SeenFacts
from compaction.segments.checking.growth import violations
from compaction.segments.checking.reading import read_facts, read_wal_files
from compaction.segments.directory.fs import regular_segments
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.memtable import LogEntry
from compaction.segments.model import HEADER_BYTES, segment_name
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.system import LogSystem
from compaction.segments.wal.files import open_wal, wal_files, wal_name, wal_number
from support.segments.segment_logs import LIMITS, WAIT, entries, flush, varied_system, write_wal


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "system"
    varied_system(directory)
    return directory


@pytest.fixture
def system(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "system", symlinks=True))


def found_after(system: Path, act: Callable[[Path], None]) -> set[OwnerRule]:
    before = read_facts(system)
    act(system)
    return {problem.rule for problem in violations(before, read_facts(system, before))}


def append(system: Path) -> None:
    with LogSystem(system, limits=LIMITS) as opened:
        opened.open_log("a").append(entries(71, 75, term=3)).result(WAIT)


def move_into_segments(system: Path) -> None:
    with LogSystem(system, limits=LIMITS) as opened:
        append_to = opened.open_log("a")
        append_to.append(entries(71, 99, term=3)).result(WAIT)
        flush(opened)


def overwrite(system: Path) -> None:
    with LogSystem(system, limits=LIMITS) as opened:
        log = opened.open_log("a")
        log.append(entries(50, 52, term=4)).result(WAIT)
        flush(opened)


def overwrite_and_take_a_snapshot(system: Path) -> None:
    """At the entry itself, which is dead then: of the overwrite nothing is left but the end of the log."""
    with LogSystem(system, limits=LIMITS) as opened:
        log = opened.open_log("a")
        log.append(entries(50, 52, term=4)).result(WAIT)
        log.snapshot(52, 4, b"\x83j", LiveSet.parse("9,30")).result(WAIT)
        flush(opened)


def overwrite_and_keep_it_live(system: Path) -> None:
    with LogSystem(system, limits=LIMITS) as opened:
        log = opened.open_log("a")
        log.append(entries(50, 60, term=4)).result(WAIT)
        log.snapshot(55, 4, b"\x83j", LiveSet.parse("9,30,51")).result(WAIT)


def take_snapshot(system: Path) -> None:
    with LogSystem(system, limits=LIMITS) as opened:
        opened.open_log("a").snapshot(64, 2, b"\x83j", LiveSet.parse("9,30,33")).result(WAIT)


def delete_dead(system: Path) -> None:
    """Segments whose entries are all dead after a snapshot."""
    with LogSystem(system, limits=LIMITS) as opened:
        opened.open_log("a").snapshot(64, 2, b"\x83j", LiveSet.parse("9")).result(WAIT)
    for name in regular_segments(system / "a")[:-1]:
        segment = read_segment(system / "a" / name)
        if segment.first > 9 and segment.last <= 64:
            (system / "a" / name).unlink()


def delete_log(system: Path) -> None:
    shutil.rmtree(system / "a")


@pytest.mark.parametrize(
    "act",
    [
        append,
        move_into_segments,
        overwrite,
        overwrite_and_take_a_snapshot,
        overwrite_and_keep_it_live,
        take_snapshot,
        delete_dead,
        delete_log,
    ],
    ids=lambda item: item.__name__,
)
def test_what_an_owner_does_breaks_no_rule(system: Path, act: Callable[[Path], None]) -> None:
    assert found_after(system, act) == set()


def change_a_record(system: Path) -> None:
    path = system / "a" / regular_segments(system / "a")[-2]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), (9).to_bytes(8, "big"), HEADER_BYTES + 8)


def old_with_room(system: Path) -> None:
    """A segment that is not full, before the newest one."""
    with LogWriter(system / "a", max_count=8) as writer:
        writer.append(71, 2, b"x")
    path = system / "a" / segment_name(99)
    with LogWriter(system / "other", max_count=8) as writer:
        writer.append(72, 2, b"x")
    (system / "other" / segment_name(1)).rename(path)
    shutil.rmtree(system / "other")


def number_of_before(system: Path) -> None:
    shutil.copy(system / "a" / regular_segments(system / "a")[0], system / "a" / segment_name(0))


def lose_a_live_entry(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[0]).unlink()


def lose_an_entry_above(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[-1]).unlink()


def lose_the_write_ahead_log(system: Path) -> None:
    number = wal_number(wal_files(system)[-1].name)
    wal_files(system)[-1].unlink()
    write_wal(system, number + 1, [])


def change_the_write_ahead_log(system: Path) -> None:
    number = wal_number(wal_files(system)[-1].name)
    write_wal(system, number, [(b"a", LogEntry(65, 2, b"another"))])


def insert_an_older_file(system: Path) -> None:
    write_wal(system, wal_number(wal_files(system)[-1].name) - 1, [])


def go_back_to_an_older_snapshot(system: Path) -> None:
    newest = sorted((system / "a" / "snapshots").iterdir())[-1]
    shutil.rmtree(newest)


def revive(system: Path) -> None:
    write_snapshot(system / "a", index=64, term=2, live=LiveSet.parse("3,5"))


@pytest.mark.parametrize(
    ("rule", "violate"),
    [
        (OwnerRule.SEGMENTS_GROW, change_a_record),
        (OwnerRule.NUMBERS_ASCEND, number_of_before),
        (OwnerRule.NOTHING_VANISHES, lose_a_live_entry),
        (OwnerRule.NOTHING_VANISHES, lose_an_entry_above),
        (OwnerRule.NOTHING_VANISHES, lose_the_write_ahead_log),
        (OwnerRule.WAL_GROWS, change_the_write_ahead_log),
        (OwnerRule.WAL_GROWS, insert_an_older_file),
        (OwnerRule.SNAPSHOTS_ADVANCE, go_back_to_an_older_snapshot),
        (OwnerRule.LIVE_ONLY_SHRINKS, revive),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_what_breaks_a_rule_is_found(system: Path, rule: OwnerRule, violate: Callable[[Path], None]) -> None:
    assert rule in found_after(system, violate)


def test_only_the_newest_files_are_appended_to(system: Path) -> None:
    old_with_room(system)

    def append_in_the_middle(system: Path) -> None:
        newest = system / "a" / segment_name(99)
        newest.rename(system / "away")
        with LogWriter(system / "a", max_count=8) as writer:
            writer.append(72, 2, b"more")
        (system / "away").rename(newest)

    assert found_after(system, append_in_the_middle) == {OwnerRule.SEGMENTS_GROW}
    number = wal_number(wal_files(system)[-1].name)
    write_wal(system, number + 1, [])

    def append_to_the_older(system: Path) -> None:
        with (system / wal_name(number)).open("ab") as file:
            source = write_wal(system.parent, 1, [(b"a", LogEntry(71, 2, b"more"))])
            file.write(source.read_bytes()[5:])

    assert found_after(system, append_to_the_older) == {OwnerRule.WAL_GROWS}
    write_wal(system, number + 2, [])
    assert found_after(system, lambda system: (system / wal_name(number + 1)).unlink()) == {OwnerRule.WAL_GROWS}


def test_every_rule_of_two_readings_is_violated_here() -> None:
    violated = {
        OwnerRule.SEGMENTS_GROW,
        OwnerRule.NUMBERS_ASCEND,
        OwnerRule.NOTHING_VANISHES,
        OwnerRule.WAL_GROWS,
        OwnerRule.SNAPSHOTS_ADVANCE,
    }
    assert violated == {rule for rule, text in CHECKLIST.items() if text.seen is SeenFacts.WHILE}


@pytest.mark.parametrize(("gone", "rest"), [(1, [2, 3]), (2, [3]), (3, [])])
def test_files_that_their_owner_deletes_meanwhile_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int, rest: list[int]
) -> None:
    """An owner deletes the oldest first; a reader has read some of them when another one is gone."""
    files = [
        write_wal(tmp_path, number, [(b"a", entry)]) for number, entry in zip(range(1, 4), entries(1, 3), strict=True)
    ]

    def opened(path: Path) -> int:
        if path == files[gone - 1]:
            for older in files[:gone]:
                older.unlink()
        return open_wal(path)

    monkeypatch.setattr(reading, "open_wal", opened)
    found = read_wal_files(tmp_path, on_record=lambda _record, _number: None)
    assert [wal_number(wal.path.name) for wal in found] == rest


def test_a_file_that_was_never_there_is_a_gap(tmp_path: Path) -> None:
    for number in (1, 3):
        write_wal(tmp_path, number, [(b"a", entry) for entry in entries(number, number)])
    found = read_wal_files(tmp_path, on_record=lambda _record, _number: None)
    assert [wal_number(wal.path.name) for wal in found] == [1, 3]
