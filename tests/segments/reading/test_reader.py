"""Reading: checks, coalescing, fingerprints, generated logs."""

from __future__ import annotations

import importlib.util
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.segments import model
from compaction.segments.errors import CorruptEntryError, InvalidEntryError, SegmentLogError
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.generate import Pattern, corrupt_entry, generate_log
from compaction.segments.model import ADLER32S, CRC32S, crc32_each, segment_name
from compaction.segments.reading import reader
from compaction.segments.reading.reader import (
    EntryFingerprint,
    SegmentFile,
    fingerprint,
    iter_entries,
    log_fingerprint,
    pack,
    plan_reads,
    read_batches,
)
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import newest_snapshot
from support.timing import examples


@pytest.fixture
def log_of_12(tmp_path: Path) -> Path:
    with LogWriter(tmp_path, max_count=4, sync=False) as writer:
        for idx in range(1, 13):
            writer.append(idx, 1 + idx // 5, f"payload {idx}".encode())
    return tmp_path


def test_entries_are_complete(log_of_12: Path) -> None:
    entries = list(iter_entries(open_log(log_of_12)))
    assert [entry.index for entry in entries] == list(range(1, 13))
    entry = entries[5]
    assert (entry.term, entry.payload, entry.file) == (2, b"payload 6", segment_name(2))
    assert (entry.length, entry.crc32) == (9, zlib.crc32(b"payload 6"))


def test_corrupt_entry_is_named(log_of_12: Path) -> None:
    at = corrupt_entry(log_of_12, segment=2, record=1)
    assert (at.file, at.index) == (segment_name(2), 6)
    with pytest.raises(CorruptEntryError, match="index 6") as caught:
        list(iter_entries(open_log(log_of_12)))
    error = caught.value
    assert error.file == str(log_of_12 / segment_name(2))
    assert error.offset <= at.offset < error.offset + 9
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_a_sink_gets_bad_entries_and_the_others_are_read(log_of_12: Path) -> None:
    corrupt_entry(log_of_12, segment=segment_name(1), record=0)
    corrupt_entry(log_of_12, segment=2, record=3)
    errors: list[CorruptEntryError] = []
    entries = list(iter_entries(open_log(log_of_12), on_corrupt=errors.append))
    assert [error.index for error in errors] == [1, 8]
    assert [entry.index for entry in entries] == [2, 3, 4, 5, 6, 7, 9, 10, 11, 12]
    assert all(entry.payload == f"payload {entry.index}".encode() for entry in entries)


def test_a_stored_zero_means_unchecked(tmp_path: Path) -> None:
    with LogWriter(tmp_path, checksums=False) as writer:
        writer.append(1, 1, b"abc")
    path = tmp_path / segment_name(1)
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    (entry,) = iter_entries(open_log(tmp_path))
    assert (entry.payload, entry.crc32) == (b"abX", zlib.crc32(b"abX"))
    with pytest.raises(InvalidEntryError, match="checksum"):
        corrupt_entry(tmp_path, segment=1, record=0)


def test_a_truncated_file_names_the_first_missing_entry(log_of_12: Path) -> None:
    path = log_of_12 / segment_name(3)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptEntryError, match="index 12"):
        list(iter_entries(open_log(log_of_12)))


def test_a_file_cut_after_it_was_parsed(log_of_12: Path) -> None:
    log = open_log(log_of_12)
    with (log_of_12 / segment_name(3)).open("r+b") as file:
        file.truncate(log.segments[2].end_of_data - 3)
    errors: list[CorruptEntryError] = []
    assert len(list(iter_entries(log, on_corrupt=errors.append))) == 11
    assert "cut while it was read" in str(errors[0])


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 8), (2**64 - 1, 2**32 - 1), (2**63 + 5, 1), (136, 2**32 - 1), (2**40, 1)]
)
def test_hostile_offsets_and_lengths_are_named(tmp_path: Path, offset: int, length: int) -> None:
    slot = struct.pack(">QQQII", 7, 1, offset, length, 0)
    (tmp_path / segment_name(1)).write_bytes(b"RASG\x00\x02\x00\x04" + slot + bytes(96) + b"payload")
    with pytest.raises(CorruptEntryError, match="index 7"):
        list(iter_entries(open_log(tmp_path)))


records = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(130, 200) | st.integers(0, 2**64 - 1),
        st.integers(0, 40) | st.integers(0, 2**32 - 1),
        st.sampled_from([0, 1]),
    ),
    max_size=4,
)


@settings(max_examples=examples(200))
@given(records, st.binary(max_size=60), st.binary(max_size=40))
def test_any_index_gives_payloads_or_named_errors(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, int]], data: bytes, junk: bytes
) -> None:
    directory = tmp_path_factory.getbasetemp() / "hostile"
    directory.mkdir(exist_ok=True)
    slots = b"".join(struct.pack(">QQQII", idx, 1, offset, length, crc) for idx, offset, length, crc in rows)
    content = (b"RASG\x00\x02\x00\x04" + slots + junk)[:136].ljust(136, b"\0") + data
    (directory / segment_name(1)).write_bytes(content)
    log = open_log(directory)
    errors: list[CorruptEntryError] = []
    entries = list(iter_entries(log, on_corrupt=errors.append))
    segment = log.segments[0]
    assert len(entries) + len(errors) == int(segment.effective.sum())
    for entry in entries:
        row = int(np.flatnonzero(segment.effective & (segment.idx == entry.index))[0])
        offset = int(segment.offset[row])
        assert entry.payload == content[offset : offset + int(segment.length[row])]
    assert all(error.file == str(directory / segment_name(1)) for error in errors)


def test_records_may_share_or_go_back_in_the_file(tmp_path: Path) -> None:
    payload = b"0123456789"
    slots = b"".join(
        struct.pack(">QQQII", idx, 1, 136 + start, size, 0)
        for idx, start, size in [(1, 5, 5), (2, 0, 10), (3, 0, 3), (4, 9, 1)]
    )
    (tmp_path / segment_name(1)).write_bytes(b"RASG\x00\x02\x00\x04" + slots + payload)
    assert [entry.payload for entry in iter_entries(open_log(tmp_path))] == [b"56789", payload, b"012", b"9"]


def test_reads_are_coalesced_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LogWriter(tmp_path, sync=False) as writer:
        for idx in range(1, 101):
            writer.append(idx, 1, bytes([idx]) * 1000)
        writer.append(101, 1, bytes(50_000))
    log = open_log(tmp_path)
    assert len(list(read_batches(log))) == 1
    monkeypatch.setattr(reader, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(reader, "GAP_BYTES", 1_500)
    sizes = [len(batch.data) for batch in read_batches(log)]
    assert sizes == [10_000] * 10 + [50_000]
    file = SegmentFile(log.segments[0])
    strided = list(file.batches(np.arange(0, 20, 2)))
    scattered = list(file.batches(np.arange(0, 20, 4)))
    file.close()
    assert [len(batch.data) for batch in strided] == [5_000, 5_000]
    assert [len(batch.data) for batch in scattered] == [5_000]
    assert bytes(list(strided[1].payloads())[1]) == bytes([13]) * 1000


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 40), unique=True).map(sorted), st.integers(1, 200), st.integers(0, 60))
def test_any_selection_reads_the_same_payloads(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], chunk: int, gap: int
) -> None:
    directory = tmp_path_factory.getbasetemp() / "selection"
    if not directory.exists():
        with LogWriter(directory, sync=False) as writer:
            for idx in range(41):
                writer.append(idx, 1, bytes([idx]) * (1 + idx * 13 % 29))
    segment = read_segment(directory / segment_name(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK_BYTES", chunk)
        patch.setattr(reader, "GAP_BYTES", gap)
        file = SegmentFile(segment)
        batches = list(file.batches(np.array(rows, dtype=np.int64)))
        file.close()
    read = [bytes(payload) for batch in batches for payload in batch.payloads()]
    assert read == [bytes([idx]) * (1 + idx * 13 % 29) for idx in rows]
    assert all(len(batch.data) <= max(chunk, 29) for batch in batches)


def test_fingerprint_depends_on_content_only(log_of_12: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = open_log(log_of_12)
    whole = log_fingerprint(log)
    assert whole.hexdigest() == fingerprint(iter_entries(log))
    assert (whole.entries, whole.payload_bytes) == (12, sum(len(f"payload {idx}") for idx in range(1, 13)))
    other = tmp_path_factory.mktemp("other")
    with LogWriter(other, max_count=100, checksums=False, sync=False) as writer:
        for entry in iter_entries(log):
            writer.append(entry.index, entry.term, entry.payload)
    assert log_fingerprint(open_log(other)).hexdigest() == whole.hexdigest()
    assert EntryFingerprint().hexdigest() != whole.hexdigest()


@pytest.mark.parametrize("pattern", list(Pattern))
def test_generated_logs(tmp_path: Path, pattern: Pattern) -> None:
    made = generate_log(
        tmp_path / "a", pattern=pattern, segments=8, entries_per_segment=128, payload_bytes=64, seed=7, sync=False
    )
    log = open_log(tmp_path / "a")
    assert [segment.count for segment in log.segments] == [128] * 8
    assert (log.snapshot_index, log.live) == (made.snapshot_index, made.live)
    assert log.refs[-1].first == made.snapshot_index + 1
    assert log.refs[-1].last == made.last_index
    assert newest_snapshot(tmp_path / "a") is not None
    assert 0.15 < len(made.live) / made.snapshot_index < 0.4
    entries = list(iter_entries(log))
    assert [entry.index for entry in entries] == list(range(1, made.last_index + 1))
    assert {entry.length for entry in entries} == {64}
    assert all(entry.payload.startswith(b"\x83m\x00\x00\x00\x3a") for entry in entries)
    assert sum(segment.data_bytes for segment in log.segments) == made.payload_bytes == made.entries * 64
    if pattern is Pattern.OVERWRITTEN:
        assert log.orphans
        assert any(not segment.effective.all() for segment in log.segments)
    again = generate_log(
        tmp_path / "b", pattern=pattern, segments=8, entries_per_segment=128, payload_bytes=64, seed=7, sync=False
    )
    assert again.live == made.live
    for path in (tmp_path / "a").glob("*.segment"):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_generator_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    generate_log(tmp_path, segments=1, entries_per_segment=4, payload_bytes=10, live_fraction=0, sync=False)
    with pytest.raises(SegmentLogError, match="already holds segments"):
        generate_log(tmp_path)
    with pytest.raises(ValueError, match="payload_bytes"):
        generate_log(tmp_path / "x", payload_bytes=6)
    with pytest.raises(InvalidEntryError, match="record 9"):
        corrupt_entry(tmp_path, segment=1, record=9)


# Many payloads at once: what is read, how it is laid side by side, and its checksums, against the obvious way.

FILE = bytes(index * 7 % 251 for index in range(600))
SPANS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=25)
EQUAL = st.tuples(st.lists(st.integers(0, 500), max_size=25), st.integers(1, 60)).map(
    lambda drawn: [(offset, drawn[1]) for offset in drawn[0]]
)


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets, lengths = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    return offsets, lengths


@given(SPANS | EQUAL | EQUAL.map(sorted), st.integers(1, 200), st.integers(0, 60))
def test_the_reads_bring_exactly_the_payloads(spans: list[tuple[int, int]], chunk: int, gap: int) -> None:
    """Any order, overlaps, empty ones: every payload in one batch, in order, and no batch above its bound."""
    offsets, lengths = arrays(spans)
    got: list[bytes] = []
    for reads in plan_reads(offsets, lengths, chunk_bytes=chunk, gap_bytes=gap):
        assert reads.begin == len(got)
        data = memoryview(b"".join(FILE[at : at + size] for at, size in zip(reads.offsets, reads.sizes, strict=True)))
        assert len(data) == reads.size
        assert reads.size <= chunk or reads.end == reads.begin + 1
        mine = lengths[reads.begin : reads.end]
        packed = pack(data, reads.starts, mine)
        assert len(packed) == mine.sum()
        ends = np.cumsum(mine)
        got += [bytes(packed[end - size : end]) for end, size in zip(ends.tolist(), mine.tolist(), strict=True)]
        assert crc32_each(packed, mine).tolist() == [zlib.crc32(payload) for payload in got[reads.begin :]]
    assert got == [FILE[offset : offset + length] for offset, length in spans]


def test_neighbours_are_one_read_and_what_is_far_is_not() -> None:
    offsets, lengths = arrays([(0, 10), (10, 10), (25, 10), (100, 10), (90, 10)])
    (reads,) = plan_reads(offsets, lengths, chunk_bytes=1000, gap_bytes=5)
    assert (reads.offsets, reads.sizes) == ([0, 100, 90], [35, 10, 10])
    assert reads.starts.tolist() == [0, 10, 25, 35, 45]


def test_what_lies_side_by_side_is_not_copied() -> None:
    buffer = bytearray(FILE)
    packed = pack(memoryview(buffer), *arrays([(10, 5), (15, 7)]))
    buffer[10] ^= 0xFF
    assert packed[0] == buffer[10]


@pytest.mark.parametrize("crc", CRC32S.values(), ids=CRC32S)
@given(st.lists(st.binary(max_size=40), max_size=12) | st.lists(st.binary(min_size=9, max_size=9), max_size=12))
def test_checksums_are_zlibs(crc: model.Checksum, payloads: list[bytes]) -> None:
    lengths = np.array([len(payload) for payload in payloads], dtype=np.int64)
    assert crc32_each(memoryview(b"".join(payloads)), lengths, crc).tolist() == [zlib.crc32(p) for p in payloads]


@pytest.mark.parametrize("adler", ADLER32S.values(), ids=ADLER32S)
@given(st.binary(max_size=9000), st.binary(max_size=40))
def test_adler_checksums_are_zlibs(adler: model.Checksum, payload: bytes, before: bytes) -> None:
    assert adler(memoryview(payload), adler(before)) == zlib.adler32(before + payload)


def test_without_isal_zlib_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    spec = importlib.util.spec_from_file_location("checksums_without_isal", model.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.CRC32S["fastest"] is zlib.crc32
    assert module.ADLER32S["fastest"] is zlib.adler32
    assert module.crc32_each(memoryview(b"abcdef"), np.array([3, 3])).tolist() == [
        zlib.crc32(b"abc"),
        zlib.crc32(b"def"),
    ]
