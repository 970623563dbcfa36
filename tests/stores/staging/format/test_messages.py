"""Messages of the key-value store: read, written, and nothing unknown lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.staging.errors import CorruptMessageError
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
