"""Records of the write-ahead log, byte for byte; every damage is named, and only the last record may be torn."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import DamagedWalError, InvalidEntryError, InvalidWalFormatError
from compaction.segments.memtable import LogEntry, MemTable
from compaction.segments.system.log import Log
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.codec import (
    HEADER,
    RecordEncoder,
    Standing,
    WalRecord,
    WriterState,
    WriteVerdict,
    checksum,
    judge,
)
from compaction.segments.wal.files import wal_name
from compaction.segments.wal.wal_log import WalClient, WalWrite, joined
from compaction.segments.wal.wal_reader import FileBytes, WalReader, find_record, read_wal

FILE = "/data/0000000000000001.wal"
GOLDEN = bytes.fromhex(
    "52415741 01"  # RAWA, version 1
    "000000 0003 756964"  # not truncating, first record of writer 0, whose id has 3 bytes: uid
    "027500eb 00000003 0000000000000001 0000000000000002 836103"  # adler32, 3 bytes, index 1, term 2, the term 3
    "c00000"  # truncating, known, writer 0
    "02a600f0 00000003 0000000000000005 0000000000000002 836104"
    "000001 0001 62"  # first record of writer 1: b
    "00000000 00000002 0000000000000007 0000000000000009 836a"  # not checked
)


def encoded(records: Sequence[WalRecord], *, checksums: bool = True) -> bytes:
    encoder = RecordEncoder(checksums=checksums)
    parts = [HEADER]
    for writer, index, term, payload, truncate, _ in records:
        parts += [encoder.head(writer, index, term, payload, truncate=truncate), payload]
    return b"".join(parts)


def decoded(data: bytes) -> list[WalRecord]:
    return list(WalReader(data, file=FILE))


def read_up_to_damage(data: bytes) -> tuple[list[WalRecord], DamagedWalError | None]:
    read: list[WalRecord] = []
    try:
        read.extend(WalReader(data, file=FILE))
    except DamagedWalError as error:
        return read, error
    return read, None


def plain(records: Sequence[WalRecord]) -> list[WalRecord]:
    """Without the offsets."""
    return [record._replace(offset=0) for record in records]


def test_golden_bytes_are_read() -> None:
    assert decoded(GOLDEN) == [
        WalRecord(b"uid", 1, 2, b"\x83a\x03", False, 5),
        WalRecord(b"uid", 5, 2, b"\x83a\x04", True, 40),
        WalRecord(b"b", 7, 9, b"\x83j", False, 70),
    ]


def test_golden_bytes_are_written() -> None:
    """All but the last record, which has no checksum."""
    reader = WalReader(GOLDEN, file=FILE)
    records = list(reader)
    assert reader.tail is None
    assert encoded(records[:2]) == GOLDEN[: records[2].offset]
    assert encoded(records, checksums=False)[-29:] == GOLDEN[-29:]


def test_checksum_is_the_adler_32_of_index_term_and_payload() -> None:
    assert checksum(1, 2, b"\x83a\x03") == zlib.adler32(struct.pack(">QQ", 1, 2) + b"\x83a\x03")


RECORDS = st.lists(
    st.builds(
        WalRecord,
        st.sampled_from([b"a", b"writer-2", b"\x00\xff", b"x" * 300]),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.binary(min_size=1, max_size=60),
        st.booleans(),
        st.just(0),
    ),
    max_size=12,
)


@given(RECORDS, st.integers(0, 40))
def test_what_was_written_is_read(records: list[WalRecord], zeros: int) -> None:
    """Also in a preallocated file, which ends with zeros."""
    assert plain(decoded(encoded(records) + bytes(zeros))) == records


@given(RECORDS.filter(bool), st.data())
def test_a_file_that_is_cut_ends_after_its_last_whole_record(records: list[WalRecord], data: st.DataObject) -> None:
    whole = encoded(records)
    ends = [record.offset for record in decoded(whole)] + [len(whole)]
    cut = data.draw(st.integers(len(HEADER), len(whole)))
    reader = WalReader(whole[:cut], file=FILE)
    count = max(number for number, end in enumerate(ends) if end <= cut)
    assert plain(list(reader)) == records[:count]
    torn = whole[ends[count] : cut].rstrip(b"\0")
    assert (reader.tail is not None) == bool(torn)
    if reader.tail is not None:
        assert reader.tail.offset == ends[count]


@given(RECORDS.filter(bool), st.data())
def test_a_changed_byte_is_never_read(records: list[WalRecord], data: st.DataObject) -> None:
    """It is damage with its offset when a whole record follows, and the torn end of the file when none does."""
    whole = encoded(records)
    ends = [record.offset for record in decoded(whole)] + [len(whole)]
    position = data.draw(st.integers(len(HEADER), len(whole) - 1))
    change = data.draw(st.integers(1, 255))
    number = max(number for number, end in enumerate(ends) if end <= position)
    changed = bytearray(whole)
    changed[position] ^= change
    read, damage = read_up_to_damage(bytes(changed))
    if damage is not None:
        # A writer's number and id are not under the checksum: then the next record of that writer is the damaged one.
        assert damage.file == FILE
        assert damage.offset in ends[number:]
        assert [r[1:4] for r in read] == [r[1:4] for r in records[: ends.index(damage.offset)]]
        return
    # Nor is a flag; the entry itself is always right.
    entries = [(r.index, r.term, r.payload) for r in records]
    assert [(r.index, r.term, r.payload) for r in read] in (entries, entries[:number])
    if len(read) < len(entries):
        assert number == len(entries) - 1
        assert find_record(whole, ends[number] + 1, dict.fromkeys(range(9), b"")) is None


STRETCHES = st.integers(len(HEADER), 400)


@given(RECORDS, st.integers(0, 40), STRETCHES, st.data())
def test_how_much_is_read_at_once_changes_nothing(
    records: list[WalRecord], zeros: int, stretch: int, data: st.DataObject
) -> None:
    """Whole files, torn ones and damaged ones: the same records, the same end, the same error."""
    changed = bytearray(encoded(records) + bytes(zeros))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(len(HEADER), len(changed))) :]
    if len(changed) > len(HEADER) and data.draw(st.booleans()):
        changed[data.draw(st.integers(len(HEADER), len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    found = []
    for at_once in (len(changed), stretch):
        reader, read, damage = WalReader(bytes(changed), file=FILE, stretch=at_once), list[WalRecord](), ""
        try:
            read.extend(reader)
        except DamagedWalError as error:
            damage = str(error)
        found.append((read, damage, reader.end, reader.tail))
    assert found[0] == found[1]


def test_a_file_is_read_in_stretches_however_large_it_is(tmp_path: Path) -> None:
    """Beside a stretch, only the largest record is in memory: the entries are the caller's."""
    records = [WalRecord(b"uid", index, 1, bytes(300_000 if index == 7 else 1000)) for index in range(1, 2001)]
    path = tmp_path / wal_name(1)
    path.write_bytes(encoded(records))
    taken: list[int] = []
    with open(path, "rb", buffering=0) as file:

        def read(count: int, offset: int) -> bytes:
            taken.append(count)
            file.seek(offset)
            return file.read(count)

        source = FileBytes(path.stat().st_size, read)
        assert plain(list(WalReader(source, file=FILE, stretch=1 << 16))) == records
    assert max(taken) < 2 * 300_000
    assert sum(taken) < 2 * source.size
    with read_wal(path) as reader:
        assert sum(len(run.entries) for run in reader.runs()) == len(records)
        assert reader.end == source.size


NEIGHBOURS = st.lists(
    st.tuples(st.sampled_from([b"a", b"writer-2", b"x" * 300]), st.sampled_from([1, 1, 1, 1, 0, 2, -3]), st.booleans()),
    max_size=30,
)


@given(NEIGHBOURS, st.data())
def test_runs_are_the_records_of_each_writer(steps: list[tuple[bytes, int, bool]], data: st.DataObject) -> None:
    """Whole files and damaged ones: the same entries, the same end, the same error."""
    last = dict.fromkeys((writer for writer, _, _ in steps), 10)
    records = []
    for number, (writer, step, truncate) in enumerate(steps):
        last[writer] = max(0, last[writer] + step)
        records.append(WalRecord(writer, last[writer], number, b"%d" % number, truncate and step != 1))
    changed = bytearray(encoded(records))
    if len(changed) > len(HEADER) and data.draw(st.booleans()):
        changed[data.draw(st.integers(len(HEADER), len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    read, damage = read_up_to_damage(bytes(changed))
    reader = WalReader(bytes(changed), file=FILE, stretch=data.draw(STRETCHES))
    if damage is not None:
        with pytest.raises(DamagedWalError) as error:
            list(reader.runs())
        assert str(error.value) == str(damage)
        return
    runs = list(reader.runs())
    whole = WalReader(bytes(changed), file=FILE)
    assert list(whole) == read
    assert reader.tail == whole.tail
    for writer in {record.writer for record in read}:
        mine = [run for run in runs if run.writer == writer]
        assert [(e.index, e.term, e.payload) for run in mine for e in run.entries] == [
            (r.index, r.term, r.payload) for r in read if r.writer == writer
        ]
        flagged = {run.entries[0][1] for run in mine if run.truncate}
        assert flagged >= {r.term for r in read if r.writer == writer and r.truncate}
        assert all(e.index == run.entries[0].index + n for run in mine for n, e in enumerate(run.entries))


def test_damage_before_a_whole_record_names_file_and_offset() -> None:
    records = [WalRecord(b"uid", index, 1, b"payload %d" % index) for index in range(1, 4)]
    data = bytearray(encoded(records))
    second = decoded(bytes(data))[1].offset
    data[second + 30] ^= 1
    with pytest.raises(DamagedWalError, match=rf"{FILE}: damaged .* offset {second}: the checksum of index 2") as error:
        decoded(bytes(data))
    assert error.value.offset == second


def test_a_huge_length_does_not_hide_what_follows() -> None:
    records = [WalRecord(b"uid", index, 1, b"payload %d" % index) for index in range(1, 4)]
    data = bytearray(encoded(records))
    second = decoded(bytes(data))[1].offset
    data[second + 7 : second + 11] = b"\xff\xff\xff\xff"
    with pytest.raises(DamagedWalError, match="of 4294967295 bytes is cut off after"):
        decoded(bytes(data))


def test_lost_bytes_before_a_whole_record_are_not_the_end_of_the_file() -> None:
    records = [WalRecord(b"uid", index, 1, bytes([index]) * 200) for index in range(1, 40)]
    data = encoded(records)
    hole = data[:1000] + bytes(4096) + data[5096:]
    with pytest.raises(DamagedWalError, match="a whole record follows at offset"):
        decoded(hole)


def test_a_record_of_a_writer_that_no_record_introduced_is_damage() -> None:
    data = encoded([WalRecord(b"a", 1, 1, b"x"), WalRecord(b"a", 2, 1, b"y")])
    second = decoded(data)[1].offset
    with pytest.raises(
        DamagedWalError, match=r"writer number 0 is not introduced by any .* the record itself is whole"
    ):
        decoded(HEADER + data[second:])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off after 0 of 5"),
        (b"RAWA", "cut off after 4 of 5"),
        (b"RASG\x01", "begins with b'RASG'"),
        (b"RAWA\x02", "version 2 is not supported"),
    ],
)
def test_another_file_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidWalFormatError, match=reason) as error:
        WalReader(data, file=FILE)
    assert error.value.file == FILE


@pytest.mark.parametrize(
    ("writer", "index", "term", "reason"),
    [
        (b"", 1, 1, "1..65535 bytes, not 0"),
        (b"x" * 65536, 1, 1, "1..65535 bytes, not 65536"),
        (b"w", -1, 1, "unsigned 64-bit"),
        (b"w", 1, 2**64, "unsigned 64-bit"),
    ],
)
def test_what_a_record_cannot_hold_is_refused(writer: bytes, index: int, term: int, reason: str) -> None:
    encoder = RecordEncoder()
    with pytest.raises(InvalidEntryError, match=reason):
        encoder.head(writer, index, term, b"x")
    # A refused record has introduced no writer.
    assert encoder.head(b"w", 1, 1, b"x")[:6] == b"\x00\x00\x00\x00\x01w"


# Writes of a batch that go on where the one before ends are one write; nothing else changes.

LOGS = [cast(WalClient, Log(name, Path("/system") / name, row=LogRow(), snapshot=None)) for name in ("a", "b")]
TABLES = [MemTable(), MemTable()]


def write(log: int, table: int, first: int, count: int, previous: int | None) -> WalWrite:
    entries = [LogEntry(index, 1, b"x" * (index % 5 + 1)) for index in range(first, first + count)]
    return WalWrite(LOGS[log], TABLES[table], previous, entries, sum(len(entry.payload) for entry in entries))


WRITES = st.builds(
    write, st.integers(0, 1), st.integers(0, 1), st.integers(0, 6), st.integers(1, 3), st.none() | st.integers(0, 6)
)


@given(st.lists(WRITES, max_size=12))
def test_joined_writes_hold_the_same_entries_in_the_same_order(writes: list[WalWrite]) -> None:
    found = joined(writes)
    for log in LOGS:
        before = [(w.table, entry) for w in writes if w.client is log for entry in w.entries]
        assert [(w.table, entry) for w in found if w.client is log for entry in w.entries] == before
    assert sum(item.size for item in found) == sum(item.size for item in writes)
    for item in found:
        assert [entry.index for entry in item.entries] == list(
            range(item.entries[0].index, item.entries[0].index + len(item.entries))
        )


def test_appends_of_several_logs_in_turn_become_one_write_each() -> None:
    writes = [write(log, log, index, 1, index - 1) for index in range(5, 9) for log in (0, 1)]
    assert [(item.client, item.previous, len(item.entries)) for item in joined(writes)] == [
        (LOGS[0], 4, 4),
        (LOGS[1], 4, 4),
    ]


def test_a_gap_another_table_and_a_write_that_goes_back_begin_another_write() -> None:
    first = write(0, 0, 1, 2, 0)
    for second in (write(0, 0, 4, 1, 2), write(0, 1, 3, 1, 2), write(0, 0, 3, 1, 1), write(0, 0, 2, 1, 2)):
        assert joined([first, second]) == [first, second]
    assert len(joined([first, write(0, 0, 3, 1, 2)])) == 1


# Which writes the write-ahead log takes, and that a log whose writes get lost converges to all of them.

GAP = WriterState(5, Standing.OUT_OF_SEQUENCE)


@pytest.mark.parametrize(
    ("writer", "index", "previous", "smallest_live", "verdict", "after"),
    [
        (None, 7, 6, 0, WriteVerdict.WRITE, WriterState(7)),
        (None, 7, None, 0, WriteVerdict.WRITE, WriterState(7)),
        (WriterState(5), 6, 5, 0, WriteVerdict.WRITE, WriterState(6)),
        (WriterState(5), 3, 2, 0, WriteVerdict.WRITE, WriterState(3)),
        (WriterState(5), 9, 5, 0, WriteVerdict.WRITE, WriterState(9)),
        (WriterState(5), 7, 6, 0, WriteVerdict.REQUEST_RESEND, GAP),
        (GAP, 8, 7, 0, WriteVerdict.REFUSE, GAP),
        (GAP, 6, 5, 0, WriteVerdict.WRITE, WriterState(6)),
        (WriterState(5), 9, 8, 9, WriteVerdict.WRITE_TRUNCATING, WriterState(9)),
        (GAP, 9, 8, 9, WriteVerdict.WRITE_TRUNCATING, WriterState(9)),
        (WriterState(5), 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (None, 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (GAP, 8, 7, 9, WriteVerdict.BELOW_LIVE, WriterState(8)),
        (WriterState(5), 9, None, 0, WriteVerdict.WRITE, WriterState(9)),
    ],
)
def test_each_write_has_one_verdict(
    writer: WriterState | None,
    index: int,
    previous: int | None,
    smallest_live: int,
    verdict: WriteVerdict,
    after: WriterState,
) -> None:
    assert judge(writer, index=index, previous=previous, smallest_live=smallest_live) == (verdict, after)


@given(st.lists(st.booleans(), max_size=60))
def test_a_log_whose_writes_get_lost_is_asked_once_for_each_gap(arrives: list[bool]) -> None:
    """What is written never has a gap, whatever gets lost; once nothing does, everything is written."""
    state: WriterState | None = WriterState(0)
    written: list[int] = []
    requests = 0
    for index, arrived in enumerate([*arrives, True], start=1):
        queue = [index] if arrived else []
        while queue:
            one = queue.pop(0)
            before = state
            verdict, state = judge(state, index=one, previous=one - 1, smallest_live=0)
            assert state is not None
            if verdict is WriteVerdict.WRITE:
                written.append(one)
            elif verdict is WriteVerdict.REQUEST_RESEND:
                assert before is not None
                assert before.standing is Standing.IN_SEQUENCE
                requests += 1
                queue = [*range(state.last + 1, index + 1)]
            else:
                assert verdict is WriteVerdict.REFUSE
    assert written == list(range(1, len(arrives) + 2))
    following = [*arrives, True]
    assert requests == sum(not a and b for a, b in pairwise(following))
