"""Moving entries into segments: where they are appended, what is left out, what a snapshot in between changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.directory import fs
from compaction.segments.errors import CorruptSegmentError, EntryMissingError, SegmentLogError
from compaction.segments.format.segment_file import LogWriter, encode_header, read_segment
from compaction.segments.memtable import LogEntry, MemTable, Seq
from compaction.segments.model import HEADER_BYTES, segment_name, torn_from
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import LogCut
from compaction.segments.system.rules import LogRow, select
from compaction.segments.wal.files import WalEnd
from compaction.segments.wal.wal_log import RolledFile, WrittenBatch
from compaction.segments.writer import NewSegments, SegmentWriter, flush, repair_last
from support.clocks import PATIENCE_SECONDS

SMALL = NewSegments(max_count=4)


class Client:
    """A log as the segment writer sees it; remembers what was reported."""

    def __init__(self, directory: Path, row: LogRow | None = None) -> None:
        self.uid = directory.name.encode()
        self.directory = directory
        self.row = row or LogRow()
        self.reported: list[Seq] = []

    def written(self, marks: Sequence[WrittenBatch]) -> None:
        raise AssertionError(marks)

    def resend(self, after: int) -> None:
        raise AssertionError(after)

    def failed(self, error: SegmentLogError) -> None:
        raise error

    def flushed(self, pieces: Sequence[tuple[MemTable, Seq]], number: int) -> None:
        assert all(set(indexes) <= set(open_log(self.directory).segments[-1].idx.tolist()) for _, indexes in pieces)
        self.reported += [indexes for _, indexes in pieces]


def table(indexes: Sequence[int], term: int = 1, size: int = 8) -> tuple[MemTable, Seq]:
    result = MemTable()
    for index in indexes:
        result.insert(LogEntry(index, term, (b"%d@%d" % (index, term)).ljust(size, b".")))
    return result, result.indexes.copy()


def records(directory: Path) -> list[list[int]]:
    """The indexes in each segment, all of them, in file order."""
    return [read_segment(path).idx.tolist() for path in sorted(directory.glob("*.segment"))]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.mkdir()
    return path


def test_entries_go_on_in_the_last_segment_and_in_its_successors(directory: Path) -> None:
    client = Client(directory)
    assert flush(client, [table(range(1, 3))], SMALL) == 2
    assert flush(client, [table(range(3, 12))], SMALL) == 9
    assert records(directory) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]


def test_a_newer_table_overwrites_an_older_one(directory: Path) -> None:
    flush(Client(directory), [table(range(1, 9)), table(range(4, 6), term=2)], NewSegments())
    assert records(directory) == [[1, 2, 3, 4, 5]]
    assert [(e.index, e.term) for e in iter_entries(open_log(directory))] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]


@pytest.mark.parametrize(("size", "segments"), [(600, [[1, 2], [9]]), (400, [[1, 2, 9]])])
def test_a_dead_last_segment_is_left_if_it_is_large_enough(
    directory: Path, size: int, segments: list[list[int]]
) -> None:
    """More than 1,024 bytes of data."""
    client = Client(directory)
    flush(client, [table([1, 2], size=size)], NewSegments())
    client.row = LogRow(5, 1, LiveSet.empty())
    flush(client, [table([9])], NewSegments())
    assert records(directory) == segments


def test_a_segment_with_one_live_entry_is_continued(directory: Path) -> None:
    client = Client(directory)
    flush(client, [table([1, 2], size=900)], NewSegments())
    client.row = LogRow(5, 1, LiveSet.parse("2"))
    flush(client, [table([9])], NewSegments())
    assert records(directory) == [[1, 2, 9]]


def test_nothing_is_created_for_nothing(directory: Path) -> None:
    client = Client(directory, LogRow(9, 1, LiveSet.empty()))
    assert flush(client, [table(range(1, 9))], SMALL) == 0
    assert records(directory) == []
    directory.rmdir()
    assert flush(Client(directory), [table(range(1, 9))], SMALL) == 0
    assert not directory.exists()


@pytest.mark.parametrize("left", [b"", b"RAS"])
def test_a_segment_without_a_header_is_created_again(directory: Path, left: bytes) -> None:
    (directory / segment_name(1)).write_bytes(left)
    row = LogRow()
    assert repair_last(directory, row=row, in_wal=Seq([(1, 3)]), covered=True) == 0
    flush(Client(directory), [table(range(1, 4))], SMALL)
    assert records(directory) == [[1, 2, 3]]


def test_a_name_of_a_compacted_segment_is_not_appended_to(directory: Path) -> None:
    flush(Client(directory), [table(range(1, 3))], SMALL)
    (directory / segment_name(2)).symlink_to(segment_name(1))
    flush(Client(directory), [table(range(3, 5))], SMALL)
    assert read_segment(directory / segment_name(3)).idx.tolist() == [3, 4]


def test_a_snapshot_during_the_flush_means_that_less_is_needed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a segment rolls the row is read again; entries that the log has forgotten meanwhile are not missing."""
    client = Client(directory)
    entries, indexes = table(range(1, 3001))
    create = fs.create

    def snapshot(path: Path, *, mode: int = 0o644) -> int:
        if path.name == segment_name(2):
            client.row = LogRow(2900, 1, LiveSet.parse("5,2500"))
            entries.remove_below(5)
            entries.remove(range(1500, 2500))
        return create(path, mode=mode)

    monkeypatch.setattr(fs, "create", snapshot)
    flush(client, [(entries, indexes)], NewSegments(max_count=1000))
    written = [index for segment in records(directory) for index in segment]
    # The first 1,024 entries were handed on before, and the second part of them made the segment roll.
    assert written[:1024] == list(range(1, 1025))
    assert written[-101:] == [2500, *range(2901, 3001)]
    assert not set(written) & {*range(2501, 2901)}


def test_a_needed_entry_that_is_missing_is_an_error(directory: Path) -> None:
    entries, indexes = table(range(1, 9))
    entries.remove([5])
    with pytest.raises(EntryMissingError, match="index 5 is missing"):
        flush(Client(directory), [(entries, indexes)], SMALL)


def test_a_file_is_deleted_only_after_all_its_logs_are_in_segments(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("sync", "sync_directory", "unlink"):
        original = getattr(fs, name)

        def record(what: int | Path, name: str = name, original: object = original) -> None:
            order.append(f"{name} {what.name}" if isinstance(what, Path) else name)
            original(what)  # type: ignore[operator]

        monkeypatch.setattr(fs, name, record)
    clients = [Client(directory), Client(tmp_path / "other")]
    clients[1].directory.mkdir()
    wal = tmp_path / "0000000000000001.wal"
    wal.write_bytes(b"")
    writer = SegmentWriter(tmp_path, limits=SMALL, max_waiting=1)
    writer.accept(RolledFile(wal, WalEnd(5, 5), {client: [table(range(1, 3))] for client in clients}))
    assert writer.drain(PATIENCE_SECONDS)
    writer.close()
    assert [client.reported for client in clients] == [[Seq([(1, 2)])]] * 2
    assert order[-3:-1] == [f"unlink {wal.name}", f"sync_directory {tmp_path.name}"]
    assert order.index("sync_directory log") < order.index("sync_directory other") < order.index(f"unlink {wal.name}")


# --- segments as a power failure left them --------------------------------------------------------------------------


def torn(directory: Path, *, slot: int, begin: int, end: int) -> Path:
    """Ten entries in a segment; bytes begin..end of one index slot never reached the disk, nor did later slots."""
    with LogWriter(directory, max_count=16) as writer:
        for index in range(301, 311):
            writer.append(index, 1, b"entry %d" % index)
    path = directory / segment_name(1)
    data = bytearray(path.read_bytes())
    at = HEADER_BYTES + slot * 32
    data[at + begin : at + end] = bytes(end - begin)
    data[at + 32 : HEADER_BYTES + 16 * 32] = bytes(HEADER_BYTES + 16 * 32 - at - 32)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("begin", "end"), [(7, 32), (8, 32), (24, 32), (0, 24), (16, 24)])
def test_half_a_slot_is_cleared_before_it_hides_what_is_above_it(directory: Path, begin: int, end: int) -> None:
    path = torn(directory, slot=6, begin=begin, end=end)
    assert torn_from(read_segment(path)) == 6
    assert repair_last(directory, row=LogRow(), in_wal=Seq([(304, 310)]), covered=True) == 1
    assert [entry.index for entry in iter_entries(open_log(directory))] == list(range(301, 307))
    flush(Client(directory), [table(range(304, 311), term=1)], SMALL)
    assert [entry.index for entry in iter_entries(open_log(directory))] == list(range(301, 311))


def test_damage_that_no_flush_explains_is_not_cleared(directory: Path) -> None:
    path = torn(directory, slot=6, begin=0, end=0)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 3 * 32 + 24 : HEADER_BYTES + 4 * 32] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match="offset 104 is damaged, and index 305 behind it is only here"):
        repair_last(directory, row=LogRow(), in_wal=Seq([(306, 310)]), covered=True)
    with pytest.raises(CorruptSegmentError, match=r"the index slot at offset 104 .* does not continue the payloads"):
        repair_last(directory, row=LogRow(), in_wal=Seq(), covered=False)
    assert path.read_bytes() == bytes(data)


def test_a_slot_whose_payload_is_gone_and_in_no_write_ahead_log_is_not_cleared(directory: Path) -> None:
    flush(Client(directory), [table(range(301, 307), size=600)], NewSegments(max_count=8))
    path = directory / segment_name(1)
    path.write_bytes(path.read_bytes()[:-1300])
    data = path.read_bytes()
    with pytest.raises(CorruptSegmentError, match="index 304 behind it is only here"):
        repair_last(directory, row=LogRow(), in_wal=Seq([(305, 310)]), covered=True)
    assert path.read_bytes() == data
    # A flush under way explains it as well.
    assert repair_last(directory, row=LogRow(), in_wal=Seq([(304, 310)]), covered=True) == 3


@pytest.mark.parametrize(("first", "cleared"), [(305, 4), (0, 4), (306, None)])
def test_what_is_behind_the_cut_of_a_log_may_be_torn(directory: Path, first: int, cleared: int | None) -> None:
    """It was being flushed, and the recovery has not taken it from the write-ahead log again."""
    path = torn(directory, slot=6, begin=0, end=0)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 3 * 32 + 24 : HEADER_BYTES + 4 * 32] = bytes(8)
    path.write_bytes(data)
    cut = LogCut(first, 2)
    if cleared is None:
        with pytest.raises(CorruptSegmentError, match="index 305 behind it is only here"):
            repair_last(directory, row=LogRow(), in_wal=Seq(), covered=True, cut=cut)
    else:
        assert repair_last(directory, row=LogRow(), in_wal=Seq(), covered=True, cut=cut) == cleared


def test_a_whole_segment_is_not_touched(directory: Path) -> None:
    flush(Client(directory), [table(range(1, 4))], SMALL)
    path = directory / segment_name(1)
    before = path.read_bytes()
    assert repair_last(directory, row=LogRow(), in_wal=Seq([(1, 3)]), covered=True) == 0
    assert path.read_bytes() == before
    path.write_bytes(encode_header(max_count=4))
    assert repair_last(directory, row=LogRow(), in_wal=Seq([(1, 3)]), covered=True) == 0


# Which entries of a rolled file reach segments: Ra's cases, and the rule against a model.

NO_SNAPSHOT = LogRow()


def row(index: int, live: str) -> LogRow:
    return LogRow(index, 1, LiveSet.parse(live))


def seq(text: str) -> Seq:
    return Seq(LiveSet.parse(text).ranges)


@pytest.mark.parametrize(
    ("written", "state", "kept"),
    [
        (["1-5"], NO_SNAPSHOT, ["1-5"]),
        # Live 2 and 4 at a snapshot of 4: 3 is not written.
        (["1-5"], row(4, "2,4"), ["2,4,5"]),
        (["1-100"], row(80, "10-20,50"), ["10-20,50,81-100"]),
        (["1-10"], row(10, ""), [""]),
        (["1-10"], row(4, ""), ["5-10"]),
        (["1-10"], row(40, "2"), ["2"]),
        (["1-3,100,200-203"], row(201, "2,150,200"), ["2,200,202-203"]),
        (["1-10", "5-7"], NO_SNAPSHOT, ["1-4", "5-7"]),
        (["1-10", "5-7", "6-9"], NO_SNAPSHOT, ["1-4", "5", "6-9"]),
        (["5-10", "3-4", "5-6"], NO_SNAPSHOT, ["", "3-4", "5-6"]),
        (["1-10", "0-2"], NO_SNAPSHOT, ["", "0-2"]),
        (["1-10", "5-12"], row(8, "3,7"), ["3", "7,9-12"]),
        (["1-10", "", "5"], NO_SNAPSHOT, ["1-4", "", "5"]),
        # What is live is unknown: everything is kept.
        (["1-10"], LogRow(8, 1, None), ["1-10"]),
    ],
)
def test_each_case(written: list[str], state: LogRow, kept: list[str]) -> None:
    assert select([seq(text) for text in written], state) == [seq(text) for text in kept]


@pytest.mark.parametrize(
    ("written", "state", "stored", "kept"),
    [
        # 18 went back behind 19 and 20, which are stored, and is dead: without it they would be there again.
        (["18"], row(18, ""), 20, ["18"]),
        (["16-18"], row(18, ""), 20, ["18"]),
        (["16-18"], row(18, ""), 18, [""]),
        (["16-18"], row(18, ""), None, [""]),
        # Another entry goes back as far.
        (["16-18"], row(18, "17"), 20, ["17"]),
        (["16-19"], row(18, ""), 20, ["19"]),
        # It leaves a gap in which something is stored.
        (["16-18,22"], row(18, ""), 20, ["18,22"]),
        (["16,22"], row(18, ""), 20, ["16,22"]),
        # What is stored lies at or below the snapshot, where only live entries count.
        (["14"], row(18, "3"), 17, [""]),
        (["19-20"], row(18, ""), 25, ["19-20"]),
    ],
)
def test_what_was_overwritten_stays_so(written: list[str], state: LogRow, stored: int | None, kept: list[str]) -> None:
    assert select([seq(text) for text in written], state, stored) == [seq(text) for text in kept]


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20), min_size=1), st.integers(0, 20), st.data())
def test_segments_hold_what_the_tables_said(
    stored: set[int], table: set[int], snapshot: int, data: st.DataObject
) -> None:
    """Whatever stood in segments before: above the snapshot only what was not overwritten."""
    held = {index for index in stored if index < min(table)} | table
    live = data.draw(st.sets(st.sampled_from(sorted(held)))) & set(range(snapshot + 1))
    state = LogRow(snapshot, 1, LiveSet.from_indexes(live))
    (kept,) = select([Seq.from_indexes(table)], state, max(stored, default=None))
    after = set(stored)
    for index in kept:
        after = {item for item in after if item < index} | {index}
    assert {index for index in after if state.needs(index)} == {index for index in held if state.needs(index)}


TABLES = st.lists(st.sets(st.integers(0, 30), max_size=12), max_size=4)


@given(TABLES, st.integers(0, 30), st.sets(st.integers(0, 30)))
def test_the_rule_entry_by_entry(tables: list[set[int]], snapshot: int, live: set[int]) -> None:
    below = LiveSet.from_indexes(index for index in live if index <= snapshot)
    state = LogRow(snapshot, 1, below)
    kept = select([Seq.from_indexes(table) for table in tables], state)
    for number, table in enumerate(tables):
        later = [min(newer) for newer in tables[number + 1 :] if newer]
        assert set(kept[number]) == {
            index for index in table if all(index < first for first in later) and (index > snapshot or index in below)
        }
    assert all(index >= state.smallest_live for seq in kept for index in seq)
