"""Targets of staging areas: tables with their checksums as they are and made right, and values."""

from __future__ import annotations

import importlib
import pkgutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cramjam

from compaction import staging
from compaction.staging.errors import CorruptMessageError, CorruptRangeError, RangeRecordError, UnsupportedRangeError
from compaction.staging.flows.branching import JournalledToken
from compaction.staging.format.columns import TOMBSTONE, RecordColumns
from compaction.staging.format.identity import FramingError, frame_value, frame_values, split_value, split_values
from compaction.staging.format.messages import (
    BranchData,
    CatalogEntry,
    CommitData,
    ProtoTimestamp,
    RangeData,
    StagingMessage,
    TagData,
    read_fields,
)
from compaction.staging.format.ranges import read_metarange
from compaction.staging.format.table_parts import masked_checksum
from compaction.staging.format.table_reader import BytesSource, TableReader
from compaction.staging.lakefs.journal import MergeEntry
from compaction.staging.lakefs.repository import read_branch_row
from compaction.staging.refs.branches import BranchRecord, RepositoryRecord
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.rows import FEW, decode_row, decode_rows, encode_row
from fuzz.target import Target, refusing
from support.staging.staging_tables import RECORD, SHAPES, PlainBlock, numbered, table, write_plain

NAME: Final = "repo/_lakefs/range"
_TABLES: Final = (
    table([(b"a", b"1")]),
    table([]),
    table(numbered(40)),
    table(SHAPES["trailers"][:200]),
    write_plain([(b"c", b"")], {}),
)
_TOKENS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x7f",
    b"\x01" + bytes(7),
    b"\x11" + b"\xff" * 7,
    struct.pack("<I", 2**28),
    b"\x00\x08\x00" + b"\x01" + bytes(7),
    b"\xf7\xcf\xf4\x85\xb7\x41\xe2\x88",
)


def _read(data: bytes) -> None:
    """All records, in order; a seek to any of them finds it."""
    with refusing(NAME, CorruptRangeError, UnsupportedRangeError):
        reader = TableReader(BytesSource(data, NAME))
        records = [pair for batch in reader.batches() for pair in batch.pairs()]
        keys = [key for key, _ in records]
        assert keys == sorted(set(keys))
        for key, value in records[:2] + records[-2:]:
            assert reader.get(key) == value
        assert list(read_metarange(reader, NAME)) or not records


def _table(data: bytes, _: Path) -> None:
    _read(data)


def _block(data: bytes, _: Path) -> None:
    """The only data block of a table, plain or Snappy by its last byte, its checksum right and everything else fits."""
    content, kind = data[:-1], data[-1:] or b"\0"
    out = bytearray(content + kind + struct.pack("<I", masked_checksum(content + kind)))

    def add(block: bytes) -> bytes:
        handle = _varint(len(out)) + _varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", masked_checksum(block + b"\0")))
        return handle

    def one(key: bytes, value: bytes) -> bytes:
        return b"\0" + _varint(len(key)) + _varint(len(value)) + key + value + struct.pack("<2I", 0, 1)

    index = add(one(b"\xff" * 60 + bytes(8), _varint(0) + _varint(len(content))))
    entries = {
        b"rocksdb.block.based.table.index.type": bytes(4),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
        b"rocksdb.num.data.blocks": b"\x01",
        b"rocksdb.num.entries": b"\x28",
    }
    body = b"".join(one(key, value)[:-8] for key, value in entries.items())
    meta = add(one(b"rocksdb.properties", add(body + struct.pack("<2I", 0, 1))))
    footer = (b"\x01" + meta + index).ljust(41, b"\0") + struct.pack("<I", 2) + bytes.fromhex("f7cff485b741e288")
    _read(bytes(out) + footer)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _value(data: bytes, _: Path) -> None:
    """A value by itself and in a column: both find the same parts, or none."""
    try:
        parts = split_value(data)
    except FramingError:
        parts = None
    try:
        columns = split_values(RecordColumns.of([(b"k", data)]))
    except RangeRecordError:
        assert parts is None
        return
    assert parts == (columns.identities[0].as_py(), columns.data[0].as_py())
    (again,) = frame_values(columns).to_pylist()
    assert split_value(again) == parts


def _data_block(records: list[tuple[bytes, bytes]]) -> bytes:
    block = PlainBlock(16)
    for key, value in records:
        block.add(key + RECORD, value)
    return block.finish()


_DATA_BLOCKS: Final = tuple(_data_block(records) for records in (numbered(40), SHAPES["trailers"][:40], numbered(1)))
_BLOCK_SEEDS: Final = (
    *(block + b"\0" for block in _DATA_BLOCKS),
    bytes(cramjam.snappy.compress_raw(_DATA_BLOCKS[0])) + b"\1",
)

STAGING_TARGETS: Final = (
    Target("range", _table, _TABLES, _TOKENS),
    Target("range-block", _block, _BLOCK_SEEDS, _TOKENS),
    Target("range-value", _value, tuple(value for _, value in numbered(3)), _TOKENS),
)


# Targets of the rows of staging areas: every message, rows of tokens by the column, branches of a live lakeFS.

ROW_NAME: Final = "repo/branches/main"
_COMMIT: Final = "c" * 64
_ROW_TOKENS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x7f",
    b"\x98\x06\x05",
    b"\xaa\x06\x01x",
    b"\xe2\x06\x05\x0a\x01j\x10\x07",
    b"\x22\x02t1",
)
_CUT: Final = b"\xff\xfe\xff"
"""Between rows of an input: in no message."""


for _module in pkgutil.walk_packages(staging.__path__, f"{staging.__name__}."):
    importlib.import_module(_module.name)


def every_message(kind: type[StagingMessage] = StagingMessage) -> Iterator[type[StagingMessage]]:
    """All messages that are kept in a key-value store, or in values."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from every_message(subclass)


def _message(data: bytes, _: Path) -> None:
    """What is decoded is encoded to the same message, by each of them."""
    for kind in every_message():
        with refusing(ROW_NAME, CorruptMessageError):
            message = kind.decode(data, name=ROW_NAME)
            again = kind.decode(message.encode())
            assert again == message
            assert again.encode() == message.encode()


def _rows(data: bytes, _: Path) -> None:
    """A page of rows by the column is what the rows are one by one, or no page at all."""
    messages = data.split(_CUT)
    keys = [b"%06d" % number for number in range(len(messages))]
    rows = [(key, message.replace(b"KEY---", key)) for key, message in zip(keys, messages, strict=True)]
    rows += [(b"z%03d" % number, encode_row(b"z%03d" % number, _VALUE)) for number in range(FEW)]
    single: list[bytes] | None = []
    for key, row in rows:
        with refusing("token: row", CorruptMessageError):
            value = decode_row("token", key, row)
            if single is not None:
                single.append(value)
            continue
        single = None
    with refusing("token: row", CorruptMessageError):
        found = decode_rows("token", rows)
        assert single is not None, "a row that is damaged went unnoticed"
        assert found.values.to_pylist() == single
        assert found.keys.to_pylist() == [key for key, _ in rows]
        return
    assert single is None, "rows that are read one by one are read together"


def _branch(data: bytes, _: Path) -> None:
    """A row that a server may have written keeps everything but its tokens."""
    with refusing("main", CorruptMessageError):
        row = read_branch_row(data, name="main", repository="repo")
        merged = read_branch_row(row.with_sealed(["fresh"]), name="main", repository="repo")
        sealed = read_branch_row(row.with_seal("fresh"), name="main", repository="repo")
        assert (merged.sealed, merged.data.staging_token) == (("fresh",), row.data.staging_token)
        assert (sealed.data.staging_token, sealed.sealed) == ("fresh", (row.data.staging_token, *row.sealed))
        for item in (merged, sealed):
            assert (item.data.commit_id, item.data.hidden) == (row.data.commit_id, row.data.hidden)
            assert item.data.unknown == row.data.unknown
        assert merged.with_sealed(row.sealed) == row.raw or not row.sealed or _apart(row.raw)


def _apart(raw: bytes) -> bool:
    """Whether the sealed tokens of a row are not all behind each other: written again they are."""
    numbers = [field.number for field in read_fields(raw)]
    return 4 in numbers and numbers[numbers.index(4) :][: numbers.count(4)] != [4] * numbers.count(4)


_VALUE: Final = frame_value(b"identity", b"data")
_MESSAGES: Final = (
    BranchData("main", "c", "s", ("t2", "t1"), True).encode() + b"\x98\x06\x05",
    CommitData("i", "c", "m", ProtoTimestamp(5, 7), "r", {"a": "b"}, ("p", "q"), 1, 2).encode(),
    CatalogEntry("x", ProtoTimestamp(5), 9, "e", {"a": "b"}, 1, "text/plain").encode(),
    RangeData(b"a", b"z", 5, 2).encode(),
    TagData("v1", _COMMIT).encode(),
    BranchRecord("main", _COMMIT, "s", ("t",), compacted_base="b", claim_job="j", claim_token=3).unclaimed().encode(),
    RepositoryRecord("repo", "s3://b/r", default_branch_id="main", compactable=True).encode(),
    MergeEntry("f", "p", "main", _COMMIT, ("o",), 2, 5, 6, "h", ("1:ab",), "v").encode(),
    JournalledToken("t", "repo", 5, -1).encode(),
    Counts(3, 1, 99).encode(),
)
_ROWS: Final = tuple(
    _CUT.join(encode_row(b"KEY---", value) for value in values)
    for values in ([_VALUE], [_VALUE, TOMBSTONE, frame_value(b"i" * 300, b"")], [TOMBSTONE])
)
_BRANCHES: Final = (
    BranchData("main", _COMMIT, "s", ("t2", "t1"), True).encode(),
    BranchData("main", _COMMIT, "s").encode() + b"\x98\x06\x05\xaa\x06\x01x",
)

ROW_TARGETS: Final = (
    Target("staging-message", _message, _MESSAGES, _ROW_TOKENS),
    Target("staging-rows", _rows, _ROWS, (*_ROW_TOKENS, _CUT, b"\x0a\x06KEY---")),
    Target("lakefs-branch", _branch, _BRANCHES, _ROW_TOKENS),
)
