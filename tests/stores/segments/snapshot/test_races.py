"""Snapshots that change while somebody looks, that are symbolic links, and what TreatAsEmpty may and may not mean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.segments.errors import CorruptSnapshotError, LiveSetUnknownError, LogChangedError
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits, known_live
from compaction.segments.reading.view import open_log, scan_log
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot import directories
from compaction.segments.snapshot.directories import find_snapshots, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

LIVE = LiveSet.parse("1,9,17")
EMPTY = IndexesMissing.TREAT_AS_EMPTY


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "root" / "log"
    with LogWriter(directory, max_count=8, sync=False) as writer:
        for index in range(1, 41):
            writer.append(index, 1, b"entry %d" % index)
    return directory


def test_empty_is_only_the_directorys_own_snapshot_without_its_file(log: Path) -> None:
    write_snapshot(log, index=32, term=1, live=None)
    for given in (None, 32):
        assert known_live(open_log(log, snapshot_index=given), EMPTY) == LiveSet.empty()
    with pytest.raises(LiveSetUnknownError):
        known_live(open_log(log), IndexesMissing.REFUSE)


@pytest.mark.parametrize("given", [24, 40])
def test_another_snapshot_index_makes_nothing_empty(log: Path, given: int) -> None:
    """The live set of the directory's snapshot is known, that of the given one is not: nobody said it is empty."""
    write_snapshot(log, index=32, term=1, live=LIVE)
    state = open_log(log, snapshot_index=given)
    with pytest.raises(LiveSetUnknownError, match=f"not of index {given}.*--live"):
        plan_log(state, SegmentLimits(), indexes_missing=EMPTY)
    assert known_live(open_log(log, snapshot_index=given, live=LIVE), EMPTY) == LIVE


def test_a_directory_without_snapshot_makes_nothing_empty(log: Path) -> None:
    with pytest.raises(LiveSetUnknownError, match="--live"):
        plan_log(open_log(log, snapshot_index=32), SegmentLimits(), indexes_missing=EMPTY)


def test_a_corrupt_indexes_file_is_not_a_missing_one(log: Path) -> None:
    path = write_snapshot(log, index=32, term=1, live=LIVE).path / "indexes"
    path.write_bytes(b"RASI\x01junk")
    with pytest.raises(LiveSetUnknownError):
        known_live(scan_log(log).log, EMPTY)


def _replace_while_reading(monkeypatch: pytest.MonkeyPatch, log: Path, *, terms: list[int]) -> None:
    """Between snapshot.dat and indexes the owner completes its next snapshot and deletes the one being read."""
    read_live = directories._read_live

    def racing(path: Path, *, snapshot_index: int) -> LiveSet | None:
        if terms:
            write_snapshot(log, index=32, term=terms.pop(0), live=LIVE, sync=False)
            shutil.rmtree(path.parent)
        return read_live(path, snapshot_index=snapshot_index)

    monkeypatch.setattr(directories, "_read_live", racing)


def test_a_snapshot_deleted_by_its_owner_while_it_is_read_is_not_unknown(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_snapshot(log, index=32, term=1, live=LIVE)
    _replace_while_reading(monkeypatch, log, terms=[2, 3])
    found = find_snapshots(log).newest
    assert found is not None
    assert (found.term, found.live) == (3, LIVE)


def test_snapshots_that_never_hold_still_are_an_error(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_snapshot(log, index=32, term=1, live=LIVE)
    _replace_while_reading(monkeypatch, log, terms=list(range(2, 100)))
    with pytest.raises(LogChangedError, match="run again"):
        find_snapshots(log)


def test_a_snapshot_completed_meanwhile_is_not_rejected(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer snapshot is half-written at the first look; whole, and the older one half-deleted, at the next."""
    old = write_snapshot(log, index=24, term=1, live=LIVE).path
    new = write_snapshot(log, index=32, term=2, live=LIVE).path / "snapshot.dat"
    whole = new.read_bytes()
    new.write_bytes(whole[:-1])
    read_live = directories._read_live

    def racing(path: Path, *, snapshot_index: int) -> LiveSet | None:
        if path.parent == old:
            new.write_bytes(whole)
            path.unlink()
        return read_live(path, snapshot_index=snapshot_index)

    monkeypatch.setattr(directories, "_read_live", racing)
    search = find_snapshots(log)
    assert search.newest is not None
    assert (search.newest.index, search.newest.live, search.rejected) == (32, LIVE, ())


def test_a_link_in_place_of_the_snapshots_directory_is_refused(log: Path, tmp_path: Path) -> None:
    write_snapshot(log, index=32, term=1, live=LIVE)
    (log / "snapshots").rename(tmp_path / "elsewhere")
    (log / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptSnapshotError, match=r"snapshots: .*symbolic link.* not followed"):
        open_log(log)
    assert [str(log / "snapshots") in str(error) for error in scan_log(log).errors] == [True]
    assert open_log(log, snapshot_index=32, live=LIVE).live == LIVE
    errors = {error.path: error for error in sense_root(log.parent, SenseSettings()).errors}
    assert errors[log].reason is LogErrorReason.LOG_INVALID
    assert "not followed" in errors[log].message


@pytest.mark.parametrize("name", ["", "snapshot.dat", "indexes"])
def test_a_link_in_place_of_a_snapshot_or_its_files_is_not_followed(log: Path, tmp_path: Path, name: str) -> None:
    path = write_snapshot(log, index=32, term=1, live=LIVE).path / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    search = find_snapshots(log)
    if name == "indexes":
        assert search.newest is not None
        assert (search.newest.live, "not followed" in str(search.newest.live_error)) == (None, True)
    else:
        assert search.newest is None
        assert "not followed" in str(search.rejected[0])
        assert {"not followed" in item.detail for item in plan_log(open_log(log), SegmentLimits()).left_alone} == {True}


def test_a_file_in_place_of_the_snapshots_directory_is_named(log: Path) -> None:
    (log / "snapshots").write_text("x")
    with pytest.raises(CorruptSnapshotError, match=r"snapshots: .*not a directory"):
        open_log(log)


def test_a_stray_file_among_the_snapshots_stops_nothing(log: Path) -> None:
    write_snapshot(log, index=32, term=1, live=LIVE)
    (log / "snapshots" / "notes.txt").write_text("x")
    assert sense_root(log.parent, SenseSettings()).errors == ()
