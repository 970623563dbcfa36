"""Snapshot directories: what is valid, which one counts, what is unknown."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CompactionError
from compaction.segments.errors import CorruptIndexesError, CorruptSnapshotError
from compaction.segments.format import etf
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


META = {etf.Atom("index"): 1, etf.Atom("term"): 1}


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
