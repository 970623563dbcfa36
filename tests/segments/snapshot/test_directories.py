"""Snapshot directories: what is valid, which one counts, what is unknown."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CompactionError
from compaction.segments.errors import CorruptIndexesError, CorruptSnapshotError, LiveSetUnknownError, LogChangedError
from compaction.segments.format import etf
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits, known_live
from compaction.segments.reading.view import open_log, scan_log
from compaction.segments.scan.find import LogErrorReason
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot import directories
from compaction.segments.snapshot.directories import (
    SnapshotOrigin,
    encode_snapshot,
    find_snapshots,
    newest_snapshot,
    parse_snapshot_name,
    read_snapshot_meta,
    snapshot_name,
    write_snapshot,
)
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes

# snapshot.dat written by Ra 3.1.10: index 1714, term 4, one member, state {fixture_state, 1714}.
RA_SNAPSHOT = bytes.fromhex(
    "5241534e016b612489000000568374000000047705696e64657862000006b277047465726d61047707636c757374657274000000016802"
    "7703666978770d6e6f6e6f6465406e6f686f73747400000000770f6d616368696e655f76657273696f6e6100836802770d66697874757265"
    "5f737461746562000006b2"
)
LIVE = LiveSet.parse("1-5,9")


def write_raw(directory: Path, name: str, data: bytes) -> Path:
    path = directory / "snapshots" / name
    path.mkdir(parents=True)
    (path / "snapshot.dat").write_bytes(data)
    return path


def sealed(body: bytes) -> bytes:
    return struct.pack(">4sBI", b"RASN", 1, zlib.crc32(body)) + body


def with_meta(meta: bytes) -> bytes:
    return sealed(struct.pack(">I", len(meta)) + meta)


def test_golden_snapshot_both_ways(tmp_path: Path) -> None:
    state = etf.encode((etf.Atom("fixture_state"), 1714))
    origin = SnapshotOrigin.of_members((("fix", "nonode@nohost"),), 0)
    assert encode_snapshot(index=1714, term=4, state=state, origin=origin) == RA_SNAPSHOT
    write_raw(tmp_path, "0000000000000004_00000000000006B2", RA_SNAPSHOT)
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert (snapshot.index, snapshot.term, snapshot.live) == (1714, 4, None)


def test_names_are_upper_case_hexadecimal_term_first() -> None:
    assert snapshot_name(term=4, index=0x6B2) == "0000000000000004_00000000000006B2"
    meta = parse_snapshot_name("0000000000000004_00000000000006B2")
    assert meta is not None
    assert (meta.index, meta.term) == (0x6B2, 4)
    for other in ("0000000000000004_00000000000006b2", "4_6B2", "0000000000000004_00000000000006B2.tmp"):
        assert parse_snapshot_name(other) is None


def test_write_and_read_back(tmp_path: Path) -> None:
    written = write_snapshot(tmp_path, index=20, term=3, live=LIVE)
    assert newest_snapshot(tmp_path) == written
    assert written.path == tmp_path / "snapshots" / snapshot_name(term=3, index=20)


def test_live_above_the_snapshot_is_refused_both_ways(tmp_path: Path) -> None:
    with pytest.raises(CompactionError, match="live index 9 is above"):
        write_snapshot(tmp_path, index=8, term=1, live=LIVE)
    path = write_raw(tmp_path, snapshot_name(term=1, index=8), encode_snapshot(index=8, term=1, state=b"\x83j"))
    (path / "indexes").write_bytes(encode_indexes(LIVE))
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert snapshot.live is None
    assert "live index 9 is above" in str(snapshot.live_error)


def test_missing_indexes_is_unknown_and_an_empty_file_set_is_empty(tmp_path: Path) -> None:
    write_snapshot(tmp_path, index=20, term=3, live=None)
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert (snapshot.live, snapshot.live_error) == (None, None)
    write_snapshot(tmp_path, index=21, term=3, live=LiveSet.empty())
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert snapshot.live == LiveSet.empty()


def test_corrupt_indexes_is_an_error_state_that_names_the_file(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, index=20, term=3, live=LIVE).path / "indexes"
    path.write_bytes(path.read_bytes()[:-1])
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert snapshot.live is None
    assert isinstance(snapshot.live_error, CorruptIndexesError)
    assert str(path) in str(snapshot.live_error)


def test_newest_valid_wins_by_term_then_index(tmp_path: Path) -> None:
    write_snapshot(tmp_path, index=50, term=2, live=LIVE)
    write_snapshot(tmp_path, index=30, term=3, live=LIVE)
    torn = write_snapshot(tmp_path, index=40, term=3, live=LIVE).path / "snapshot.dat"
    torn.write_bytes(torn.read_bytes()[:-1])
    (tmp_path / "snapshots" / "notes.txt").write_text("not a snapshot")
    search = find_snapshots(tmp_path)
    assert search.newest is not None
    assert (search.newest.term, search.newest.index) == (3, 30)
    assert [error.file for error in search.rejected] == [str(torn)]


def test_no_snapshot_at_all(tmp_path: Path) -> None:
    assert newest_snapshot(tmp_path) is None
    (tmp_path / "snapshots" / snapshot_name(term=1, index=1)).mkdir(parents=True)
    search = find_snapshots(tmp_path)
    assert search.newest is None
    assert "the file is missing" in str(search.rejected[0])


META: dict[etf.Term, etf.Term] = {etf.Atom("index"): 1, etf.Atom("term"): 1}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not begin"),
        (b"RASN\x01\x00", "does not begin"),
        (b"RASX" + with_meta(etf.encode({}))[4:], "does not begin"),
        (b"RASN\x02" + with_meta(etf.encode({}))[5:], "version 2"),
        (with_meta(etf.encode({}))[:-1] + b"x", "checksum"),
        (sealed(b""), "metadata of 0 bytes"),
        (sealed(b"\xff\xff\xff\xff\x83"), "cut off or larger"),
        (sealed(struct.pack(">I", 2 << 20) + bytes(2 << 20)), "cut off or larger"),
        (with_meta(b"\x83\x6a\x00"), "cannot be decoded"),
        (with_meta(etf.encode([])), "not a map"),
        (with_meta(etf.encode({etf.Atom("index"): 1})), "not a map"),
        (with_meta(etf.encode({**META, etf.Atom("index"): -1})), "not a map"),
        (with_meta(etf.encode({**META, etf.Atom("index"): 2})), "index 2, term 1"),
    ],
)
def test_invalid_snapshots_are_named(tmp_path: Path, data: bytes, says: str) -> None:
    path = write_raw(tmp_path, snapshot_name(term=1, index=1), data)
    search = find_snapshots(tmp_path)
    assert search.newest is None
    (error,) = search.rejected
    assert says in str(error)
    assert str(path / "snapshot.dat") in str(error)


def test_other_things_than_files(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "directory", tmp_path / "pipe", tmp_path / "file" / "snapshot.dat"):
        with pytest.raises(CorruptSnapshotError, match="not a file"):
            read_snapshot_meta(path)
    path = write_snapshot(tmp_path, index=20, term=3, live=None).path / "indexes"
    os.mkfifo(path)
    snapshot = newest_snapshot(tmp_path)
    assert snapshot is not None
    assert "not a file" in str(snapshot.live_error)


@given(data=st.binary(max_size=120))
def test_any_bytes_give_a_snapshot_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-snapshot.dat"
    for attempt in (data, sealed(data), with_meta(data), with_meta(b"\x83" + data)):
        path.write_bytes(attempt)
        with suppress(CorruptSnapshotError):
            read_snapshot_meta(path)


# Snapshots that change while somebody looks, that are symbolic links, and what TreatAsEmpty may and may not mean.

RACED = LiveSet.parse("1,9,17")
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
    for index in (None, 32):
        assert known_live(open_log(log, snapshot_index=index), EMPTY) == LiveSet.empty()
    with pytest.raises(LiveSetUnknownError):
        known_live(open_log(log), IndexesMissing.REFUSE)


@pytest.mark.parametrize("given", [24, 40])
def test_another_snapshot_index_makes_nothing_empty(log: Path, given: int) -> None:
    """The live set of the directory's snapshot is known, that of the given one is not: nobody said it is empty."""
    write_snapshot(log, index=32, term=1, live=RACED)
    state = open_log(log, snapshot_index=given)
    with pytest.raises(LiveSetUnknownError, match=f"not of index {given}.*--live"):
        plan_log(state, SegmentLimits(), indexes_missing=EMPTY)
    assert known_live(open_log(log, snapshot_index=given, live=RACED), EMPTY) == RACED


def test_a_directory_without_snapshot_makes_nothing_empty(log: Path) -> None:
    with pytest.raises(LiveSetUnknownError, match="--live"):
        plan_log(open_log(log, snapshot_index=32), SegmentLimits(), indexes_missing=EMPTY)


def test_a_corrupt_indexes_file_is_not_a_missing_one(log: Path) -> None:
    path = write_snapshot(log, index=32, term=1, live=RACED).path / "indexes"
    path.write_bytes(b"RASI\x01junk")
    with pytest.raises(LiveSetUnknownError):
        known_live(scan_log(log).log, EMPTY)


def _replace_while_reading(monkeypatch: pytest.MonkeyPatch, log: Path, *, terms: list[int]) -> None:
    """Between snapshot.dat and indexes the owner completes its next snapshot and deletes the one being read."""
    read_live = directories._read_live

    def racing(path: Path, *, snapshot_index: int) -> LiveSet | None:
        if terms:
            write_snapshot(log, index=32, term=terms.pop(0), live=RACED, sync=False)
            shutil.rmtree(path.parent)
        return read_live(path, snapshot_index=snapshot_index)

    monkeypatch.setattr(directories, "_read_live", racing)


def test_a_snapshot_deleted_by_its_owner_while_it_is_read_is_not_unknown(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_snapshot(log, index=32, term=1, live=RACED)
    _replace_while_reading(monkeypatch, log, terms=[2, 3])
    found = find_snapshots(log).newest
    assert found is not None
    assert (found.term, found.live) == (3, RACED)


def test_snapshots_that_never_hold_still_are_an_error(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_snapshot(log, index=32, term=1, live=RACED)
    _replace_while_reading(monkeypatch, log, terms=list(range(2, 100)))
    with pytest.raises(LogChangedError, match="run again"):
        find_snapshots(log)


def test_a_snapshot_completed_meanwhile_is_not_rejected(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer snapshot is half-written at the first look; whole, and the older one half-deleted, at the next."""
    old = write_snapshot(log, index=24, term=1, live=RACED).path
    new = write_snapshot(log, index=32, term=2, live=RACED).path / "snapshot.dat"
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
    assert (search.newest.index, search.newest.live, search.rejected) == (32, RACED, ())


def test_a_link_in_place_of_the_snapshots_directory_is_refused(log: Path, tmp_path: Path) -> None:
    write_snapshot(log, index=32, term=1, live=RACED)
    (log / "snapshots").rename(tmp_path / "elsewhere")
    (log / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptSnapshotError, match=r"snapshots: .*symbolic link.* not followed"):
        open_log(log)
    assert [str(log / "snapshots") in str(error) for error in scan_log(log).errors] == [True]
    assert open_log(log, snapshot_index=32, live=RACED).live == RACED
    errors = {error.path: error for error in sense_root(log.parent, SenseSettings()).errors}
    assert errors[log].reason is LogErrorReason.LOG_INVALID
    assert "not followed" in errors[log].message


@pytest.mark.parametrize("name", ["", "snapshot.dat", "indexes"])
def test_a_link_in_place_of_a_snapshot_or_its_files_is_not_followed(log: Path, tmp_path: Path, name: str) -> None:
    path = write_snapshot(log, index=32, term=1, live=RACED).path / name
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
    write_snapshot(log, index=32, term=1, live=RACED)
    (log / "snapshots" / "notes.txt").write_text("x")
    assert sense_root(log.parent, SenseSettings()).errors == ()
