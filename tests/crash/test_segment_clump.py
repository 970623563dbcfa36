"""Death before, during and after every mutating system call of re-writing live entries at the head, and of recovery.

Checked each time, before any recovery: the log's owner opens it as the dead process left it and finds every value,
under the old index or the one that the map names; so does whoever reads the log without knowing the owner. After
recovery nothing is half-done; a retry with the next token completes the work, and nothing is moved twice.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.clump.clump_plan import ClumpOptions
from compaction.segments.clump.clump_run import clump_log, receipts_of
from compaction.segments.clump.moves import read_moves
from compaction.segments.commit import fence, recovery
from compaction.segments.errors import CorruptMovesError, SegmentLogError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.store import SegmentLogStore
from support.faults.sudden_death import DyingFilesystem, SuddenDeath, deaths, points
from support.segments.log_owners import KeyValueOwner, live_payloads, under_the_maps
from support.segments.ra_owner import RaOwner
from support.segments.segment_logs import leftovers
from support.timing import at_depth

JOB = "clump-by-hand"
REQUEST = ClumpOptions(shorter_than=3, min_ranges=2)
LIMITS = SegmentLimits(max_entries=6, max_bytes=1_000_000)
SPARSE = (1, 2, 7, 12, 13, 20, 27, 33, 41, 47, 48)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven entries that are live alone or in pairs, one long run, and above the snapshot newer values of some."""
    directory = tmp_path_factory.mktemp("template") / "log"
    owner = KeyValueOwner(directory)
    for number in range(60):
        owner.put(f"key{number}" if number in SPARSE else "scratch", f"value {number}" * 3)
    for number in range(6):
        owner.put(f"run{number}", "together")
    owner.snapshot()
    owner.put("key1", "newer than the snapshot")
    owner.put("key12", "newer than the snapshot")
    owner.delete("key20")
    owner.stop()
    return directory


def _attempt(directory: Path, *, token: int) -> None:
    fence.claim(directory, job=JOB, token=token, holder="test", now=1.0)
    clump_log(
        directory,
        request=REQUEST,
        limits=LIMITS,
        owner_stopped=True,
        job=JOB,
        token=token,
        holder="test",
        now=1000.0,
    )


def _values(directory: Path) -> dict[str, str]:
    """What an owner finds that opens a copy of the log (opening the log itself may write to it)."""
    copy = directory.with_name("opened")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy, symlinks=True)
    owner = KeyValueOwner(copy)
    owner.stop()
    return owner.values()


def _check_done(directory: Path, before: dict[int, bytes], values: dict[str, str]) -> None:
    assert under_the_maps(directory, before) == before
    assert _values(directory) == values
    assert leftovers(directory) == []
    maps = read_moves(directory)
    moved = [index for moves in maps for index in moves.old_set]
    assert len(moved) == len(set(moved)) == 11
    live = open_log(directory).live
    assert live is not None
    assert not set(moved) & set(live)
    news = [index for moves in maps for index in moves.new_set]
    assert news == list(range(news[0], news[0] + len(news)))


def test_the_template_has_every_kind_of_entry(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    log = open_log(directory)
    assert log.live is not None
    assert log.snapshot_index is not None
    assert max(live_payloads(directory)) > log.snapshot_index
    sizes = [high - low + 1 for low, high in log.live.ranges]
    assert sizes == [2, 1, 2, 1, 1, 1, 1, 2, 7]


def test_death_at_every_step(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    before, values = live_payloads(directory), _values(directory)
    with DyingFilesystem() as counter:
        _attempt(directory, token=1)
    _check_done(directory, before, values)
    assert [r.entries for r in receipts_of(directory, JOB)] == [6, 5]
    assert counter.calls.count("link 0000000000000010.clump 0000000000000010.segment") == 1
    assert len(counter.calls) > 50
    for number, when, name in deaths(counter.calls):
        directory = fresh()
        with DyingFilesystem(at=number, when=when), pytest.raises(SuddenDeath):
            _attempt(directory, token=1)
        _check_one_death(directory, before, values, f"{when} {number} {name}")


def _check_one_death(directory: Path, before: dict[int, bytes], values: dict[str, str], what: str) -> None:
    assert under_the_maps(directory, before) == before, f"{what}: not readable as it was left"
    assert _values(directory) == values, f"{what}: the owner does not find its values"
    recovery.recover(directory, now=1000.0)
    assert not recovery.is_needed(directory), what
    assert under_the_maps(directory, before) == before, f"{what}: not readable after recovery"
    assert _values(directory) == values, f"{what}: the owner does not find its values after recovery"
    _attempt(directory, token=2)
    # The zombie's own partial files, as the coordinator's sweeper finds them.
    sweep.sweep(directory, grace_seconds=1e9, active=frozenset())
    _check_done(directory, before, values)


def _half_done(directory: Path) -> list[int]:
    """Call numbers of an attempt at which its commits begin, are at their commit point, and are nearly done."""
    with DyingFilesystem() as counter:
        _attempt(directory, token=1)
    first = "0000000000000010.clump"
    marks = (f".partial {first}", ".moves", f"link {first}", "indexes", f"unlink {first}")
    return [number for number, name in enumerate(counter.calls) if any(mark in name for mark in marks)]


def test_death_at_every_step_of_recovery(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    before, values = live_payloads(directory), _values(directory)
    stops = _half_done(directory)
    assert len(stops) >= 5
    dead = 0
    for stop in stops:

        def half_done(stop: int = stop) -> Path:
            directory = fresh()
            with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
                _attempt(directory, token=1)
            return directory

        directory = half_done()
        with DyingFilesystem() as undisturbed:
            recovery.recover(directory, now=1000.0)
        for number in points(undisturbed.calls):
            where = f"{stop} {number} {undisturbed.calls[number]}"
            directory = half_done()
            with DyingFilesystem(at=number), pytest.raises(SuddenDeath):
                recovery.recover(directory, now=1000.0)
            dead += 1
            assert under_the_maps(directory, before) == before, f"{where}: not readable as it was left"
            assert _values(directory) == values, where
            recovery.recover(directory, now=1000.0)
            assert not recovery.is_needed(directory)
            assert leftovers(directory) in ([], [f"0000000000000011.{JOB}.1.partial"])
            assert under_the_maps(directory, before) == before
            assert _values(directory) == values
    assert dead > 15


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
def test_a_full_disk_at_every_step(fresh: Callable[[], Path], lasting: bool) -> None:
    """The error says what became of it, and afterwards it is so."""
    directory = fresh()
    before, values = live_payloads(directory), _values(directory)
    with DyingFilesystem() as counter:
        _attempt(directory, token=1)
    refused = 0
    for number in points(counter.calls):
        name = counter.calls[number]
        directory = fresh()
        failure = OSError(errno.ENOSPC, "No space left on device")
        with DyingFilesystem(at=number, error=failure, lasting=lasting):
            try:
                _attempt(directory, token=1)
            except SegmentLogError as error:
                refused += 1
                _check_outcome(directory, str(error), name)
        assert under_the_maps(directory, before) == before, name
        assert _values(directory) == values, name
        recovery.recover(directory, now=1000.0)
        assert under_the_maps(directory, before) == before, name
        assert not recovery.is_needed(directory)
    assert refused > at_depth(short=25, deep=40)


def _check_outcome(directory: Path, message: str, name: str) -> None:
    """Of the first of the two rounds, if it is the one that failed."""
    assert "No space left" in message, name
    placed = sum((directory / f"00000000000000{number}.segment").exists() for number in (10, 11))
    if "nothing was committed" in message:
        assert not placed, name
    for said in ("segments were committed", "segments are past their commit point"):
        if said in message:
            assert f"{placed} of 2 {said}" in message, name


def test_an_owner_that_starts_too_early_wins(fresh: Callable[[], Path]) -> None:
    """Whatever the dead process left: the owner appends, and recovery then takes nothing away from it."""
    directory = fresh()
    for stop in _half_done(directory):
        directory = fresh()
        with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
            _attempt(directory, token=1)
        owner = KeyValueOwner(directory)
        for number in range(20):
            owner.put(f"late{number}", "after the crash")
        owner.put("key7", "changed after the crash")
        expected = owner.values()
        recovery.recover(directory, now=1000.0)
        assert owner.values() == expected
        owner.stop()
        assert _values(directory) == expected
        owner = KeyValueOwner(directory)
        owner.snapshot()
        owner.stop()
        _attempt(directory, token=2)
        assert _values(directory) == expected


def test_a_copy_of_a_half_done_log_comes_to_the_same_end(fresh: Callable[[], Path], tmp_path: Path) -> None:
    """`cp -r` keeps neither inodes nor times: the commit is recognised by what is in the file."""
    directory = fresh()
    before, values = live_payloads(directory), _values(directory)
    outcomes = set()
    for number, stop in enumerate(_half_done(directory)):
        directory = fresh()
        with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
            _attempt(directory, token=1)
        copy = tmp_path / f"copy{number}"
        shutil.copytree(directory, copy, copy_function=shutil.copyfile)
        expected, report = recovery.recover(directory, now=1000.0), recovery.recover(copy, now=1000.0)
        assert (report.finished, report.discarded) == (expected.finished, expected.discarded)
        outcomes.add((report.finished, report.discarded))
        assert under_the_maps(copy, before) == before
        assert _values(copy) == values
    both = ("0000000000000010.clump", "0000000000000011.clump")
    assert {(both, ()), ((), both), (both[:1], both[1:])} <= outcomes


def test_the_sensor_sees_what_is_half_done(fresh: Callable[[], Path]) -> None:
    """Nothing is planned on a log until it is recovered; the coordinator does that when it looks."""
    directory = fresh()
    for stop in _half_done(directory):
        directory = fresh()
        with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
            _attempt(directory, token=1)
        half_done = any(name.endswith(".clump") for name in os.listdir(directory))
        store = SegmentLogStore(directory.parent)
        (debt,) = store.sense().logs
        assert debt.needs_recovery == half_done == recovery.is_needed(directory)
        assert store.recover(directory).changed == half_done
        (debt,) = store.sense().logs
        assert not debt.needs_recovery


def test_a_map_of_other_entries_is_not_discarded(fresh: Callable[[], Path]) -> None:
    """A leftover `.clump` file that a map names in vain: by its first index only."""
    directory = fresh()
    _attempt(directory, token=1)
    maps = read_moves(directory)
    segment = directory / "0000000000000010.segment"
    stray = directory / "0000000000000044.clump"
    stray.write_bytes(segment.read_bytes())
    assert recovery.recover(directory).discarded == (stray.name,)
    assert [moves.receipt for moves in read_moves(directory)] == [moves.receipt for moves in maps]


def test_a_committed_map_that_cannot_be_read_stops_recovery(fresh: Callable[[], Path]) -> None:
    directory = fresh()
    with DyingFilesystem() as counter:
        _attempt(directory, token=1)
    stop = counter.calls.index("link 0000000000000010.clump 0000000000000010.segment")
    directory = fresh()
    with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
        _attempt(directory, token=1)
    path = min(directory.glob("*.moves"))
    good, live = path.read_bytes(), open_log(directory).live
    path.write_bytes(good.replace(b"[", b"{", 1))
    with pytest.raises(CorruptMovesError, match=path.name):
        recovery.recover(directory)
    path.unlink()
    with pytest.raises(CorruptMovesError, match="missing"):
        recovery.recover(directory)
    assert open_log(directory).live == live
    path.write_bytes(good)
    assert recovery.recover(directory).finished == ("0000000000000010.clump",)


def _died_after(fresh: Callable[[], Path], call: str) -> Path:
    directory = fresh()
    with DyingFilesystem() as counter:
        _attempt(directory, token=1)
    directory = fresh()
    at = next(number for number, made in enumerate(counter.calls) if made.startswith(call))
    with DyingFilesystem(at=at, when="after"), pytest.raises(SuddenDeath):
        _attempt(directory, token=1)
    return directory


def test_an_owner_that_compacted_past_the_commit_loses_nothing(fresh: Callable[[], Path]) -> None:
    """It opens the log, overwrites some of what was moved, takes its snapshot, and compacts by Ra's rules: the new
    segments are other files then, or gone, when we recover.
    """
    directory = fresh()
    rewritten = 0
    for stop in _half_done(directory):
        directory = fresh()
        with DyingFilesystem(at=stop, when="after"), pytest.raises(SuddenDeath):
            _attempt(directory, token=1)
        placed = [path.name for path in directory.glob("*.clump") if path.with_suffix(".segment").exists()]
        owner = KeyValueOwner(directory)
        for number in SPARSE[:8]:
            owner.put(f"key{number}", "later")
        for number in range(30):
            owner.put("scratch", f"later {number}")
        owner.snapshot()
        owner.stop()
        ra = RaOwner(directory)
        ra.start()
        ra.major()
        expected = _values(directory)
        rewritten += sum(not (directory / name).with_suffix(".segment").is_file() for name in placed)
        assert not recovery.recover(directory, now=1000.0).kept
        assert _values(directory) == expected
        assert not recovery.is_needed(directory)
        _attempt(directory, token=2)
        assert _values(directory) == expected
    assert rewritten


def test_the_only_copies_are_kept_and_reported(fresh: Callable[[], Path]) -> None:
    """The old entries are dead already; then a restore lost the segment that holds the new ones."""
    before = live_payloads(fresh())
    directory = _died_after(fresh, "rename compaction.indexes.tmp")
    segment, marker = directory / "0000000000000010.segment", directory / "0000000000000010.clump"
    values = _values(directory)
    segment.unlink()
    for _ in range(2):
        report = recovery.recover(directory, now=1000.0)
        assert [kept.name for kept in report.kept] == [marker.name]
        assert marker.exists()
        assert recovery.is_needed(directory)
    sweep.sweep(directory, grace_seconds=0, active=frozenset())
    assert len(list(directory.glob("*.moves"))) == 2
    shutil.copyfile(marker, segment)
    assert marker.name in recovery.recover(directory, now=1000.0).finished
    assert under_the_maps(directory, before) == before
    assert _values(directory) == values


def test_old_entries_do_not_die_while_a_copy_is_hidden(fresh: Callable[[], Path]) -> None:
    """Behind the commit point somebody wrote entries of its own under the new indexes."""
    directory = _died_after(fresh, "link 0000000000000010.clump")
    live, first = open_log(directory).live, open_log(directory).segment("0000000000000010.segment").first
    with LogWriter(directory, max_count=8, sync=False) as writer:
        writer.append(first + 2, 9, b"somebody else's")
    report = recovery.recover(directory, now=1000.0)
    assert [kept.name for kept in report.kept] == ["0000000000000010.clump"]
    assert open_log(directory).live == live
