"""Everything lakeFS wrote is read, and written again to the same bytes."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.columns import RecordColumns, concatenated
from compaction.staging.format.identity import (
    ContentIdentity,
    RangeIdentity,
    commit_id,
    entry_identity,
    frame_values,
    split_values,
)
from compaction.staging.format.messages import (
    BranchData,
    CatalogEntry,
    CommitData,
    ProtoTimestamp,
    RangeData,
    RepositoryData,
    StagedEntryData,
    StagingMessage,
    TagData,
)
from compaction.staging.format.ranges import RangeWriter, TableKind, read_metarange, table_id
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.format.table_writer import TableWriter
from support.staging.staging_tables import ANY_RECORDS, Record, read_plain

OWN = ("range", "ok1", "metarange")
WORDS = ("h", "h.no-compression.two_level_index")
"""Tables of words that RocksDB wrote, with blocks of 2,048 bytes; the first of lakeFS's own reader's tests."""
RANGE_ID = "a83af763ba098c15369d9d6d723731eb9ce18b8dfac4f88c6f1287e772393d0e"


def path_of(fixtures: Path, name: str) -> Path:
    return fixtures / "lakefs" / f"{name}.sst"


@pytest.mark.fixtures
@pytest.mark.parametrize("name", OWN)
def test_a_file_of_lakefs_is_written_again_to_the_same_bytes(shared_fixtures: Path, name: str) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        reader = TableReader(source)
        out = io.BytesIO()
        writer = TableWriter(out)
        for batch in reader.batches(batch_bytes=5000):
            writer.add(batch)
        writer.finish(reader.properties.user)
    assert out.getvalue() == path.read_bytes()


@pytest.mark.fixtures
@pytest.mark.parametrize("name", [*OWN, *WORDS])
def test_a_file_is_read_as_the_plain_codec_reads_it(shared_fixtures: Path, name: str) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        reader = TableReader(source, ignore_range_deletions=True)
        found = [pair for batch in reader.batches(batch_bytes=1) for pair in batch.pairs()]
    assert found == list(read_plain(path.read_bytes()))


@pytest.mark.fixtures
def test_data_blocks_of_rocksdb_are_written_again_to_the_same_bytes(shared_fixtures: Path) -> None:
    """Both ends of the format agree on where blocks end, on their bytes and on how Snappy compresses them."""
    data = path_of(shared_fixtures, "h").read_bytes()
    with FileSource(path_of(shared_fixtures, "h")) as source:
        batches = list(TableReader(source, ignore_range_deletions=True).batches())
    out = io.BytesIO()
    writer = TableWriter(out, block_bytes=2048)
    writer.add(concatenated(batches))
    writer.finish({})
    index = 13913
    assert out.getvalue()[: index + 245] == data[: index + 245]


@pytest.mark.fixtures
@pytest.mark.parametrize(("name", "kind"), [("range", TableKind.RANGES), ("metarange", TableKind.METARANGES)])
def test_a_range_writer_makes_the_whole_file(shared_fixtures: Path, name: str, kind: TableKind) -> None:
    path = path_of(shared_fixtures, name)
    with FileSource(path) as source:
        records = concatenated(list(TableReader(source).batches()))
        identity = table_id(TableReader(source), kind)
    out = io.BytesIO()
    writer = RangeWriter(out, kind)
    writer.add(records)
    assert writer.finish().id == identity
    assert out.getvalue() == path.read_bytes()


@pytest.mark.fixtures
def test_the_metarange_lists_the_range_by_the_id_that_its_records_have(shared_fixtures: Path) -> None:
    with FileSource(path_of(shared_fixtures, "metarange")) as source:
        (listed,) = read_metarange(TableReader(source), source.name)
    with FileSource(path_of(shared_fixtures, "range")) as source:
        assert table_id(TableReader(source), TableKind.RANGES) == listed.id == RANGE_ID
    assert (listed.min_key, listed.max_key, listed.count) == (b"a/b/c/no", b"a/b/c/yes", 2)


@pytest.mark.fixtures
@pytest.mark.parametrize("name", ["range", "ok1"])
def test_entries_are_encoded_again_to_the_same_bytes(shared_fixtures: Path, name: str) -> None:
    with FileSource(path_of(shared_fixtures, name)) as source:
        records: RecordColumns = concatenated(list(TableReader(source).batches()))
    parts = split_values(records)
    assert frame_values(parts).equals(records.values)
    for identity, data in zip(parts.identities.to_pylist(), parts.data.to_pylist(), strict=True):
        entry = CatalogEntry.decode(data)
        assert entry.encode() == data
        # Files of January 2021 have identities by an older rule (docs/design/staging.md#identities).
        assert name == "ok1" or entry_identity(entry) == identity


# Ids and identities as lakeFS computes them.


def integer(value: int) -> bytes:
    return b"\x02\x08" + value.to_bytes(8, "big", signed=True)


def string(value: str) -> bytes:
    return b"\x01" + integer(len(value.encode())) + value.encode()


def test_the_id_of_a_record_is_the_one_that_lakefs_tests_with() -> None:
    identity = RangeIdentity()
    identity.add(RecordColumns.of([(b"key", b"value")]))
    digest = hashlib.sha256(b"3key|5value|" + b"\x04" + integer(0)).hexdigest()
    assert identity.hexdigest({}) == digest == "1f60902cb44890618d61597673a62e44cf526f5991d9db687141218985fe60b8"


@given(ANY_RECORDS, st.integers(1, 60))
def test_the_id_of_records_does_not_depend_on_batches(records: list[Record], step: int) -> None:
    identity = RangeIdentity()
    for at in range(0, len(records), step):
        identity.add(RecordColumns.of(records[at : at + step]))
    plain = b"".join(b"%d%b|%d%b|" % (len(key), key, len(value), value) for key, value in records)
    user = b"\x04" + integer(1) + string("type") + string("ranges")
    assert identity.hexdigest({"type": "ranges"}) == hashlib.sha256(plain + user).hexdigest()


def test_the_identity_of_an_entry_has_no_address_and_no_time() -> None:
    entry = CatalogEntry(address="x", size=5, e_tag="e", metadata={"b": "2", "a": "ü"}, address_type=1)
    content = integer(5) + string("e") + b"\x04" + integer(2)
    content += string("a") + string("ü") + string("b") + string("2")
    assert entry_identity(entry) == hashlib.sha256(content).digest()
    moved = CatalogEntry(address="y", last_modified=ProtoTimestamp(1), size=5, e_tag="e", metadata=entry.metadata)
    assert entry_identity(moved) == entry_identity(entry)
    typed = CatalogEntry(size=5, e_tag="e", metadata=entry.metadata, content_type="text/plain")
    assert entry_identity(typed) == hashlib.sha256(content + string("text/plain")).digest()


@pytest.mark.parametrize("parents", [(), ("p",), ("p", "q")])
def test_the_id_of_a_commit_covers_its_content(parents: tuple[str, ...]) -> None:
    commit = CommitData("ignored", "me", "why", ProtoTimestamp(-7, 5), "m", {"k": "v"}, parents, 1, 9)
    slices = b"\x03" + integer(len(parents)) + b"".join(string(parent) for parent in parents)
    content = b"".join(string(item) for item in ("commit:v1", "me", "why", "m")) + integer(-7)
    content += b"\x04" + integer(1) + string("k") + string("v")
    content += b"\x05\x00" + integer(32) + hashlib.sha256(slices).digest()
    assert commit_id(commit) == hashlib.sha256(content).hexdigest()


def test_items_are_told_apart_by_their_types() -> None:
    assert ContentIdentity().string("a").digest() != ContentIdentity().data(b"a").digest()
    assert ContentIdentity().strings(["a", "b"]).digest() != ContentIdentity().mapping({"a": "b"}).digest()


# Messages of the key-value store: read, written, and nothing unknown lost.

TEXT = st.text(max_size=9)
DATA = st.binary(max_size=9)
SIGNED = st.integers(-(2**63), 2**63 - 1)
INSTANT = st.builds(ProtoTimestamp, SIGNED, SIGNED)
MAP = st.dictionaries(TEXT, TEXT, max_size=4)
UNKNOWN = st.sampled_from([b"", b"\x98\x06\x05", b"\xa2\x06\x02hi\x98\x06\x05", b"\x9d\x06abcd", b"\x99\x06abcdefgh"])
MESSAGES = st.one_of(
    st.builds(BranchData, TEXT, TEXT, TEXT, st.lists(TEXT, max_size=4).map(tuple), st.booleans(), unknown=UNKNOWN),
    st.builds(StagedEntryData, DATA, DATA, DATA, unknown=UNKNOWN),
    st.builds(
        CommitData, TEXT, TEXT, TEXT, INSTANT, TEXT, MAP, st.lists(TEXT, max_size=3).map(tuple), SIGNED, SIGNED,
        unknown=UNKNOWN,
    ),
    st.builds(
        RepositoryData, TEXT, TEXT, TEXT, st.none() | INSTANT, SIGNED, TEXT, st.booleans(), TEXT, unknown=UNKNOWN
    ),
    st.builds(TagData, TEXT, TEXT, unknown=UNKNOWN),
    st.builds(RangeData, DATA, DATA, st.integers(0, 2**64 - 1), SIGNED, unknown=UNKNOWN),
    st.builds(CatalogEntry, TEXT, st.none() | INSTANT, SIGNED, TEXT, MAP, SIGNED, TEXT, unknown=UNKNOWN),
)  # fmt: skip


@given(MESSAGES)
def test_messages_are_read_as_they_were_written(message: StagingMessage) -> None:
    data = message.encode()
    again = type(message).decode(data)
    assert again == message
    assert again.encode() == data


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (
            BranchData("main", "c1", "s", ("t2", "t1"), True),
            b"\x0a\x04main\x12\x02c1\x1a\x01s\x22\x02t2\x22\x02t1\x28\x01",
        ),
        (StagedEntryData(b"k", b"", b""), b"\x0a\x01k"),
        (
            CommitData("i", creation_date=ProtoTimestamp(1), metadata={"a": ""}, version=-1),
            b"\x0a\x01i\x22\x02\x08\x01\x32\x05\x0a\x01a\x12\x00\x40" + b"\xff" * 9 + b"\x01",
        ),
        (RangeData(b"a", b"b", 300, 2), b"\x0a\x01a\x12\x01b\x18\xac\x02\x20\x02"),
        (TagData("v1", "c"), b"\x0a\x02v1\x12\x01c"),
    ],
)
def test_messages_have_their_bytes(message: StagingMessage, data: bytes) -> None:
    assert message.encode() == data
    assert type(message).decode(data) == message


def test_an_entry_without_identity_is_a_tombstone() -> None:
    assert StagedEntryData(b"k").tombstone
    assert not StagedEntryData(b"k", b"i").tombstone


def test_what_is_unknown_is_kept_wherever_it_stands() -> None:
    data = b"\x98\x06\x05" + TagData("a", "b").encode() + b"\xa2\x06\x01x"
    tag = TagData.decode(data)
    assert tag == TagData("a", "b", unknown=b"\x98\x06\x05\xa2\x06\x01x")
    assert tag.encode() == TagData("a", "b").encode() + b"\x98\x06\x05\xa2\x06\x01x"


def test_the_later_of_two_fields_counts_and_messages_are_merged() -> None:
    assert TagData.decode(b"\x0a\x01a\x0a\x01b").id == "b"
    assert CommitData.decode(b"\x22\x02\x08\x05\x22\x02\x10\x07").creation_date == ProtoTimestamp(5, 7)
    assert CommitData.decode(b"\x32\x06\x0a\x01a\x12\x01x\x32\x06\x0a\x01a\x12\x01y").metadata == {"a": "y"}


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"\x0a\x05ab", 0, "claims 5 bytes of 2"),
        (b"\x0a", 0, "cut off"),
        (b"\x0a\x01a\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 3, "more than 64 bits"),
        (b"\x0a\x01\xff", 0, "field 1 is not UTF-8"),
        (b"\x08\x05", 0, "field 1 is no bytes"),
        (b"\x0b", 0, "of type 3"),
        (b"\x00\x00", 0, "field 0"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(CorruptMessageError, match=reason) as refused:
        TagData.decode(data, name="repo/tags/v1")
    assert str(refused.value).startswith(f"repo/tags/v1: not a TagData (byte {offset}: ")


def test_a_number_where_a_map_should_be_is_refused() -> None:
    broken: list[Any] = [b"\x30\x01", b"\x32\x02\x0a\x05", b"\x22\x02\x0a\x05", b"\x45abcd"]
    for data in broken:
        with pytest.raises(CorruptMessageError):
            CommitData.decode(data)
