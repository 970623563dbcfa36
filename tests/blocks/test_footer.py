"""What a footer says is read; what it cannot mean is an error of ours, cheaply."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.errors import BlockFormatError, CorruptBlockError, UnsuitableBlockError, UnsupportedColumnError
from compaction.blocks.format.footer import MAX_FOOTER, Bounds, read_footer
from compaction.blocks.format.footer_shape import MAX_DEPTH
from compaction.blocks.format.metadata import MAX_ANCESTORS, PREFIX, BlockMetadata, ancestry
from compaction.blocks.format.metadata import decode as metadata_decode
from compaction.blocks.format.thrift import FooterError, decode
from compaction.blocks.model import RowFingerprint
from compaction.storage.errors import ObjectMissingError
from compaction.storage.objects.store import ObjectStorage, open_objects
from support.blocks.block_stores import block_id
from support.blocks.blocks import PATH, footer_of, parquet, rows, with_footer
from support.timing import examples


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStorage:
    return open_objects(str(tmp_path / "objects"))


def test_a_footer_says_what_is_in_the_file(objects: ObjectStorage) -> None:
    table = rows(1000)
    data = parquet(table, BlockMetadata(tenant="acme", level=1), row_group_size=300, sorted_by=["service", "time"])
    objects.put(PATH, data)
    footer = read_footer(objects, PATH)
    assert footer.rows == 1000
    assert [group.rows for group in footer.row_groups] == [300, 300, 300, 100]
    assert footer.sorted_by == ("service", "time")
    assert footer.in_order()
    assert footer.schema == table.schema
    assert footer.info.size == len(data)
    assert footer.metadata["compaction.dev.tenant"] == "acme"
    assert footer.row_groups[1].bounds["service"] == Bounds(b"s0030", b"s0059", 0)
    assert footer.row_groups[1].bounds["time"] == Bounds(300, 599, 0)
    assert footer.bounds("time") == Bounds(0, 999, 0)
    assert footer.bounds("nothing") == Bounds(None, None, None)
    ends = [group.start + group.bytes for group in footer.row_groups]
    assert [group.start for group in footer.row_groups] == [4, *ends[:-1]]
    assert ends[-1] <= len(data) - 8 - len(footer_of(data))


def test_a_footer_larger_than_the_first_look(objects: ObjectStorage) -> None:
    table = pa.table({f"column-{number}": range(20) for number in range(200)})
    data = parquet(table, row_group_size=2)
    assert len(footer_of(data)) > 100_000
    objects.put(PATH, data)
    assert read_footer(objects, PATH).rows == 20


def test_bounds_are_in_the_order_of_the_values(folder: ObjectStorage) -> None:
    table = pa.table(
        {
            "unsigned": pa.array([1, 2**64 - 1], pa.uint64()),
            "small": pa.array([1, 2**32 - 1], pa.uint32()),
            "text": ["z", "é"],
            "some": pa.array([None, 5], pa.int64()),
            "none": pa.array([None, None], pa.int64()),
            "nan": [float("nan"), float("nan")],
            "day": [dt.date(1970, 1, 2), dt.date(1969, 12, 31)],
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "list": [[1], [2]],
        }
    )
    folder.put(PATH, parquet(table))
    footer = read_footer(folder, PATH)
    assert footer.bounds("unsigned") == Bounds(1, 2**64 - 1, 0)
    assert footer.bounds("small") == Bounds(1, 2**32 - 1, 0)
    assert footer.bounds("text") == Bounds(b"z", "é".encode(), 0)
    assert footer.bounds("some") == Bounds(5, 5, 1)
    assert footer.bounds("none") == Bounds(None, None, 2)
    assert footer.bounds("nan") == Bounds(None, None, 0)
    assert footer.bounds("day") == Bounds(-1, 1, 0)
    assert footer.bounds("fixed") == Bounds(None, None, 0)
    assert "list" not in footer.row_groups[0].bounds


def test_order_of_row_groups_is_proved_or_not_believed(folder: ObjectStorage) -> None:
    def in_order(table: pa.Table, size: int, *names: str) -> bool:
        folder.put(PATH, parquet(table, row_group_size=size, sorted_by=list(names)))
        return read_footer(folder, PATH).in_order()

    table = rows(100)
    assert in_order(table, 20, "service", "time")
    assert in_order(table, 100, "service", "time")
    assert not in_order(table, 15, "service", "time"), "a service lies on both sides: who knows about time"
    assert in_order(table, 15, "service")
    assert not in_order(pa.concat_tables([table.slice(50), table.slice(0, 50)]), 50, "service")
    assert not in_order(table, 20)
    assert not in_order(table.slice(0, 0), 20, "service"), "nothing is declared of no rows"


def test_schema_ids_tell_schemas_apart_and_not_their_storage(folder: ObjectStorage) -> None:
    def identify(table: pa.Table, **options: Any) -> str:
        folder.put(PATH, parquet(table, **options))
        return read_footer(folder, PATH).schema_id

    table = rows(10)
    plain = identify(table)
    coded = table.set_column(0, "service", table["service"].dictionary_encode())
    large = table.set_column(0, "service", table["service"].cast(pa.large_string()))
    assert {
        identify(coded),
        identify(large),
        identify(coded, store_schema=False),
        identify(table, compression="zstd"),
    } == {plain}
    strict = table.cast(pa.schema([table.schema.field(0).with_nullable(False), *list(table.schema)[1:]]))
    others = [table.rename_columns(["s", "time", "value"]), table.select(["time", "service", "value"]), strict]
    wide = table.set_column(2, "value", table["value"].cast(pa.int64()))
    assert len({plain, *(identify(other) for other in (*others, wide))}) == 5


class ToyKms(pe.KmsClient):  # type: ignore[misc]
    """Keys are wrapped by nothing."""

    def __init__(self, config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("plain", [True, False])
def test_an_encrypted_file_is_said_to_be_encrypted(folder: ObjectStorage, plain: bool) -> None:
    factory = pe.CryptoFactory(ToyKms)
    configuration = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["service"]}, plaintext_footer=plain
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    folder.put(PATH, parquet(rows(10), encryption_properties=properties))
    with pytest.raises(UnsuitableBlockError, match="encrypted"):
        read_footer(folder, PATH)


BROKEN = {
    "empty": (b"", CorruptBlockError),
    "short": (b"PAR1PAR1", CorruptBlockError),
    "foreign": (b"\x89PNG" + bytes(100), CorruptBlockError),
    "encrypted": (b"PARE" + bytes(100) + b"PARE", UnsuitableBlockError),
    "footer longer than the file": (b"PAR1" + bytes(10) + b"\xff\xff\xff\x7fPAR1", CorruptBlockError),
    "footer of no bytes": (with_footer(b""), CorruptBlockError),
    "footer of zeros": (with_footer(bytes(50)), CorruptBlockError),
    "an empty struct": (with_footer(b"\0"), CorruptBlockError),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_parquet_file_is_told_so(objects: ObjectStorage, name: str) -> None:
    data, kind = BROKEN[name]
    objects.put(PATH, data)
    with pytest.raises(kind, match=PATH):
        read_footer(objects, PATH)


def test_a_file_cut_anywhere_is_corrupt(folder: ObjectStorage) -> None:
    data = parquet(rows(50), row_group_size=10)
    for size in (*range(0, len(data), 97), len(data) - 1, len(data) - 4, len(data) - 8):
        folder.put(PATH, data[:size])
        with pytest.raises(CorruptBlockError):
            read_footer(folder, PATH)
    folder.put(PATH, b"PAR1" + data[-(8 + len(footer_of(data))) :])
    with pytest.raises(CorruptBlockError, match="data ends at"):
        read_footer(folder, PATH)


def test_missing_is_missing(objects: ObjectStorage) -> None:
    with pytest.raises(ObjectMissingError):
        read_footer(objects, PATH)


def test_a_footer_above_the_limit_is_not_read(folder: ObjectStorage) -> None:
    folder.put(PATH, with_footer(bytes(2000)))
    with pytest.raises(UnsuitableBlockError, match="2000 bytes, more than the 1999"):
        read_footer(folder, PATH, limit=1999)


def test_two_columns_of_one_name_are_refused(folder: ObjectStorage) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"])
    folder.put(PATH, parquet(table))
    with pytest.raises((UnsuitableBlockError, UnsupportedColumnError), match="'c'"):
        read_footer(folder, PATH)


GOOD = parquet(rows(60), BlockMetadata(tenant="acme"), row_group_size=20, sorted_by=["service", "time"])


@settings(max_examples=examples(200))
@given(st.data())
def test_a_damaged_footer_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is in it: an error of ours that names the object, or a footer that agrees with itself."""
    root = tmp_path_factory.getbasetemp() / "damaged"
    store = open_objects(str(root))
    footer = bytearray(footer_of(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(footer) - 1))
        footer[position] = data.draw(st.integers(0, 255))
    body = GOOD[4 : len(GOOD) - 8 - len(footer)]
    (root / PATH).parent.mkdir(parents=True, exist_ok=True)
    (root / PATH).write_bytes(with_footer(bytes(footer), body=body))
    try:
        read = read_footer(store, PATH)
    except (BlockFormatError, UnsupportedColumnError):
        return
    assert read.rows == sum(group.rows for group in read.row_groups)
    assert all(group.start >= 4 and group.start + group.bytes <= 4 + len(body) for group in read.row_groups)
    read.in_order()
    read.bounds("time")


@given(st.binary(max_size=200))
def test_any_bytes_as_a_footer_are_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(FooterError):
        assert isinstance(decode(data), dict)


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def schema_element(children: int) -> bytes:
    """name "n", and so many children."""
    kids = b"\x15" + varint(2 * children) if children else b""
    leaf = b"" if children else b"\x15\x02"  # type INT32
    return leaf + (b"\x35\x02\x18\x01n" if not leaf else b"\x25\x02\x18\x01n") + kids + b"\0"


def file_meta(schema: list[bytes], groups: bytes = b"\x19\x0c") -> bytes:
    """version 1, schema, no rows, row groups."""
    return b"\x15\x02\x19\xfc" + varint(len(schema)) + b"".join(schema) + b"\x16\0" + groups + b"\0"


def deep(levels: int) -> bytes:
    return file_meta([schema_element(1)] * levels + [schema_element(0)])


BOMBS = {
    "schema of 100,000 levels": deep(100_000),
    "a schema of a million columns": file_meta([schema_element(1_000_000)] + [schema_element(0)] * 1_000_000),
    # ColumnChunk {file_offset}: four bytes become about a kilobyte in the parser.
    "three million column chunks": file_meta(
        [schema_element(1), schema_element(0)],
        b"\x19\x1c\x19\xfc" + varint(3_000_000) + b"\x26\0\0" * 3_000_000 + b"\x16\0\x16\0\0",
    ),
    "a list of 2^60": b"\x15\x02\x19\xfc" + varint(1 << 60) + bytes(20),
    "a text of 2^62": b"\x15\x02\x28" + varint(1 << 62) + bytes(20),
    "lists in lists": b"\x19" + b"\x19" * 1_000_000,
    "structs in structs": b"\x1c" * 1_000_000,
    "a number without end": b"\x15" + b"\xff" * 1000,
    "nodes without a parent": file_meta([schema_element(0)] * 3),
    "nodes that are missing": file_meta([schema_element(5), schema_element(0)]),
}

PARSE = """
import resource, sys
from compaction.blocks.errors import BlockFormatError
from compaction.blocks.format.footer import read_footer
from compaction.storage.objects.store import open_objects
objects = open_objects(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_footer(objects, "bomb")
except BlockFormatError as error:
    print(type(error).__name__, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_footer_made_to_explode_does_not(folder: ObjectStorage, tmp_path: Path, name: str) -> None:
    """In a process of its own: what the library below does with such a thing is to die."""
    folder.put("bomb", with_footer(BOMBS[name]))
    assert len(BOMBS[name]) < MAX_FOOTER
    answer = subprocess.run(
        [sys.executable, "-c", PARSE, str(tmp_path / "objects")], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    kind, used = answer.stdout.split()
    assert kind in {"CorruptBlockError", "UnsuitableBlockError"}
    assert int(used) * 1024 < 16 * MAX_FOOTER, f"{used} KiB"


def test_what_the_guard_lets_through_the_library_survives(folder: ObjectStorage) -> None:
    """The deepest schema that is read, and just too deep a one."""
    folder.put("deep", with_footer(deep(MAX_DEPTH - 1)))
    assert read_footer(folder, "deep").rows == 0
    folder.put("deeper", with_footer(deep(MAX_DEPTH + 1)))
    with pytest.raises(UnsuitableBlockError, match="nested"):
        read_footer(folder, "deeper")


# What a block says of itself comes back as it was, or is refused by the name of its key.

TEXTS = st.text(max_size=20)
NAMES = st.lists(TEXTS, max_size=5).map(tuple)
NUMBERS = st.integers(0, 2**63 - 1)
SAID = st.builds(
    BlockMetadata,
    id=st.none() | TEXTS,
    tenant=st.none() | TEXTS,
    shard=st.none() | NUMBERS,
    level=st.none() | NUMBERS,
    time_column=st.none() | TEXTS,
    fingerprint=st.none() | st.builds(RowFingerprint, NUMBERS, st.integers(0, 2**128 - 1)),
    sort_key=st.none() | NAMES,
    job=st.none() | TEXTS,
    token=st.none() | NUMBERS,
    sources=NAMES,
    outputs=NAMES,
    ancestors=st.lists(st.integers(0, 99).map(block_id), max_size=5).map(tuple),
)


def texts(said: BlockMetadata) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in said.encode().items()}


@given(SAID)
def test_it_comes_back_as_it_was(said: BlockMetadata) -> None:
    assert metadata_decode({**texts(said), "pandas": "{}", f"{PREFIX}later": "unknown"}) == said


def test_parts_are_said_with_sources() -> None:
    said = BlockMetadata(sources=("a", "b"), part=2, parts=3, job="j", token=7)
    assert metadata_decode(texts(said)) == said


def test_ancestors_are_said_generation_by_generation_the_nearest_first() -> None:
    written = BlockMetadata(id="w")
    one = BlockMetadata(sources=(block_id(1), block_id(2)))
    other = BlockMetadata(sources=(block_id(3),), ancestors=(block_id(4), block_id(1)))
    assert ancestry([written, other, one]) == tuple(map(block_id, (3, 1, 2, 4)))
    many = BlockMetadata(sources=tuple(map(block_id, range(MAX_ANCESTORS + 5))))
    assert ancestry([many]) == many.sources[:MAX_ANCESTORS]


def test_nothing_said_is_nothing_known() -> None:
    assert metadata_decode({}) == BlockMetadata()


def test_what_another_algorithm_counted_or_a_later_version_wrote_is_not_taken_for_ours() -> None:
    said = texts(BlockMetadata(tenant="t", fingerprint=RowFingerprint(1, 2)))
    assert metadata_decode({**said, f"{PREFIX}fingerprint-algorithm": "rows128-0"}).fingerprint is None
    assert metadata_decode({**said, f"{PREFIX}version": "2"}) == BlockMetadata()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shard", "-1"), ("shard", "1.0"), ("shard", "1" * 20), ("level", ""), ("level", "\u0661"),
        ("fingerprint", "1:2"),
        ("sort-key", "a"), ("sort-key", '"a"'), ("sort-key", "[1]"), ("sources", "[" * 100_000), ("part", "1"),
        ("parts", "0"), ("sources", "{}"), ("outputs", "1"), ("ancestors", "0" * 27), ("ancestors", "u" * 26),
        ("ancestors", "0" * 26 * (MAX_ANCESTORS + 1)),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named(key: str, value: str) -> None:
    said = texts(BlockMetadata(fingerprint=RowFingerprint(1, 2)))
    with pytest.raises(ValueError, match=PREFIX + ("part" if key == "parts" else key)):
        metadata_decode({**said, PREFIX + key: value})
