"""Targets of the writing side: files of the write-ahead log, and the snapshot of its writers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compaction.segments.errors import DamagedWalError, InvalidWalFormatError
from compaction.segments.wal.codec import HEADER, RecordEncoder, Standing, WalRecord, WriterState
from compaction.segments.wal.files import decode_writers, encode_writers
from compaction.segments.wal.wal_reader import WalReader
from fuzz.target import Target, refusing

FILE: Final = "/system/0000000000000001.wal"
_WRITERS: Final = {b"a": WriterState(7), b"log-2": WriterState(2**63, Standing.OUT_OF_SEQUENCE)}


def wal_bytes(*records: tuple[bytes, int, bytes]) -> bytes:
    """A file with these records: writer, index, payload."""
    encoder = RecordEncoder()
    parts = [HEADER]
    for writer, index, payload in records:
        parts += [encoder.head(writer, index, 1, payload, truncate=index % 3 == 0), payload]
    return b"".join(parts)


def _wal(data: bytes, _: Path) -> None:
    """Every record that is read stands in the file, one behind the other; the rest is zeros, a torn end, or damage."""
    with refusing(FILE, InvalidWalFormatError, DamagedWalError):
        reader = WalReader(data, file=FILE)
        records: list[WalRecord] = list(reader)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(data[: record.offset] and record.payload in data[record.offset :] for record in records)
        assert reader.tail is None or not offsets or reader.tail.offset > offsets[-1]
        again = WalReader(data, file=FILE)
        assert sum(len(run.entries) for run in again.runs()) == len(records)
        assert again.tail == reader.tail


def _writers(data: bytes, _: Path) -> None:
    with refusing("/system/writers.snapshot", InvalidWalFormatError):
        writers = decode_writers(data, file="/system/writers.snapshot")
        assert decode_writers(encode_writers(writers), file="/system/writers.snapshot") == writers


WAL_TARGETS: Final = (
    Target(
        "wal",
        _wal,
        (
            wal_bytes((b"a", 1, b"x"), (b"a", 2, b"y" * 40), (b"log-2", 3, b"z"), (b"a", 3, b"x")),
            wal_bytes((b"a", 2**64 - 1, b"x" * 200)) + bytes(64),
            HEADER,
        ),
        (b"\x00\x00\x00\x00\x01a", b"\x40\x00\x00", b"\xc0\x00\x00", b"\xff\xff\xff\xff", bytes(32)),
    ),
    Target(
        "wal-writers", _writers, (encode_writers(_WRITERS), encode_writers({})), (b"m\x00\x00\x00\x01", b"w\x06in_seq")
    ),
)
