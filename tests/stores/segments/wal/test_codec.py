"""Records of the write-ahead log, byte for byte; every damage is named, and only the last record may be torn."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.errors import DamagedWalError, InvalidEntryError, InvalidWalFormatError
from compaction.segments.wal.codec import HEADER, RecordEncoder, WalRecord, checksum
from compaction.segments.wal.files import wal_name
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
        reader, read, damage = WalReader(bytes(changed), file=FILE, stretch=at_once), [], ""
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
