"""Damaged and foreign values: a named error with the byte, and no memory for what a length claims."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import PROTOCOL_1, SERIALIZERS, decode, decode_exact, encode
from compaction.catalogs.codec.codec import RELEASES as RELEASE_NAMES
from compaction.catalogs.codec.primitives import (
    NestedReader,
    ObjectWriter,
    TypeId,
    ValueReader,
    ValueWriter,
    decode_text,
    encode_text,
)
from compaction.catalogs.errors import CatalogValueError, CorruptCatalogValueError, UnsupportedCatalogValueError
from compaction.catalogs.model.descriptors import Index
from compaction.catalogs.model.entries import (
    AlterTablePropertiesEntry,
    Entry,
    Event,
    NewIndexEntry,
    NewSchemaEntry,
    VersionedUpdate,
)
from support.catalogs.events import RELEASES, entries, events, texts, updates
from support.timing import examples

SNAPSHOT = encode(RELEASES["3.2.0"][TypeId.SNAPSHOT])
OLD_SNAPSHOT = encode(RELEASES["3.0.0"][TypeId.SNAPSHOT], PROTOCOL_1)
_ENTRIES = (
    TypeId.NEW_TABLE,
    TypeId.NEW_INDEX,
    TypeId.DROP_COLUMN,
    TypeId.ALTER_TABLE_PROPERTIES,
    TypeId.RENAME_TABLE,
)
UPDATE = encode(VersionedUpdate(7, 500, tuple(RELEASES["3.2.0"][kind] for kind in _ENTRIES)))
HEAD = bytes.fromhex("0200110003")
"""Protocol 2, an update, version 2 of its serializer."""


def refused(data: bytes) -> CorruptCatalogValueError:
    with pytest.raises(CorruptCatalogValueError) as caught:
        decode(data, "catalog.update.7")
    assert "catalog.update.7" in str(caught.value)
    assert 0 <= caught.value.offset <= len(data)
    return caught.value


def unsupported(data: bytes) -> UnsupportedCatalogValueError:
    with pytest.raises(UnsupportedCatalogValueError) as caught:
        decode(data, "catalog.update.7")
    assert "catalog.update.7" in str(caught.value)
    return caught.value


@pytest.mark.parametrize("data", [SNAPSHOT, OLD_SNAPSHOT, UPDATE], ids=["snapshot", "protocol 1", "update"])
def test_cut_at_every_byte(data: bytes) -> None:
    for size in range(len(data)):
        assert refused(data[:size]).reason


@pytest.mark.parametrize("data", [SNAPSHOT, OLD_SNAPSHOT, UPDATE], ids=["snapshot", "protocol 1", "update"])
def test_bytes_that_follow_are_refused(data: bytes) -> None:
    assert refused(data + b"\0").reason == "1 bytes follow the value"
    assert refused(data + data).offset == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("0000", "protocol 0"),
        ("0300110003", "protocol 3"),
        ("0200220002", "unknown type 34"),
        ("0200110001", "version 0 of the serializer of VERSIONED_UPDATE"),
        ("0200110004", "version 3 of the serializer of VERSIONED_UPDATE"),
        ("0200110003 0101 02 050005", "version 4 of the serializer of DROP_TABLE"),
        ("0200110003 0101 02 ff7f05", "unknown type 32767"),
        ("01002200", "unknown type 34"),
        ("01001100 0101 02 23", "unknown type 34"),
    ],
)
def test_what_is_not_known_is_named(data: str, reason: str) -> None:
    assert reason in unsupported(bytes.fromhex(data)).reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("0200050003", "DROP_TABLE in a wrong place"),
        ("0200110003 0101 02 110003", "VERSIONED_UPDATE in a wrong place"),
        ("01001100 0101 02 12", "VERSIONED_UPDATE in a wrong place"),
        ("01001100 0101 02 22", "ALTER_TABLE_PROPERTIES in a wrong place"),
        ("0200110003 0101 02 050003 8180808010", "does not fit into 32 bits"),
        ("0200110003 0101 02 050003 8000", "longer than it has to be"),
        ("0200110003 01 ffffffffffffffffffff01", "more than ten bytes"),
        ("0200110003 01 ffffffffffffffffff02", "more than 64 bits"),
        ("0200110003 0101 00", "claims -1 elements"),
    ],
)
def test_what_is_wrong_is_named(data: str, reason: str) -> None:
    assert reason in refused(bytes.fromhex(data)).reason


LENGTHS = (0x7FFFFFFF, 1 << 30, 1 << 20, 200)


@pytest.mark.parametrize("claim", LENGTHS)
@pytest.mark.parametrize(
    "before",
    [
        HEAD.hex() + "0101",  # entries
        HEAD.hex() + "0101 02 030003 02",  # names of columns
        HEAD.hex() + "0101 02 030003 02 02",  # bytes of a name
        HEAD.hex() + "0101 02 0a0003",  # columns
        HEAD.hex() + "0101 02 0b0003 160004 01 01 02 02 01 00 01",  # ids of an index: 4 bytes each
    ],
)
def test_an_absurd_length_costs_nothing(before: str, claim: int) -> None:
    writer = ValueWriter()
    writer.varint(claim)
    data = bytes.fromhex(before) + bytes(writer.out)
    tracemalloc.start()
    try:
        refused(data + b"\0" * 30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("kind", ["08 0000", "10"], ids=["decimal", "bytes"])
@pytest.mark.parametrize("claim", [*LENGTHS, -1])
def test_a_length_of_a_constant_costs_nothing(kind: str, claim: int) -> None:
    """These lengths are fixed integers. The column: id 0, name "a", a type, not nullable, three zeros, a constant."""
    column = bytes.fromhex(f"01 02 61 10 00 01 01 01 00 {kind}") + struct.pack("<i", claim)
    found = refused(HEAD + bytes.fromhex("0101 02 000003 1d0004") + column + b"\0" * 30)
    assert found.reason == f"{claim} bytes are claimed, 30 are left"


@pytest.mark.parametrize(
    ("kind", "broken", "reason"),
    [
        (
            TypeId.HASH_INDEX,
            lambda data: data.replace(b"\x01\x02\x01", b"\x01\x04\x01", 1),
            "4 is no status of an index",
        ),
        (
            TypeId.HASH_INDEX,
            lambda data: data.replace(b"\x01\x02\x01", b"\x02\x02\x01", 1),
            "2 stands where 0 or 1 has to",
        ),
        (TypeId.TABLE_COLUMN, lambda data: data.replace(b"\xac\x09", b"\xac\x0f", 1), "14 is no type of a column"),
        (TypeId.TABLE_COLUMN, lambda data: data.replace(b"\xac\x09", b"\xac\x15", 1), "20 is no type of a column"),
        (TypeId.TABLE_COLUMN, lambda data: data.replace(b"\xe2", b"\x00", 1), "not modified UTF-8"),
        (TypeId.TABLE_COLUMN, lambda data: data[:-10] + b"\x02" + data[-9:], "2 is no kind of a default"),
        (TypeId.TABLE_COLUMN, lambda data: data[:-9] + b"\x13" + data[-8:], "a constant of the type STRUCT"),
        (TypeId.TABLE_COLUMN, lambda data: data[:-2] + b"\xff\xff", "a decimal in more or fewer bytes"),
        (TypeId.ZONE, lambda data: data[:-1] + b"\x02", "2 is no consistency mode"),
        (TypeId.SYSTEM_VIEW, lambda data: data[:-1] + b"\x02", "2 is no kind of a system view"),
        (TypeId.SORTED_INDEX, lambda data: data[:-1] + b"\x04", "4 is no collation"),
        (TypeId.TABLE, lambda data: data.replace(struct.pack("<i", 0), struct.pack("<i", 4)), "a key of columns"),
        (TypeId.TABLE, lambda data: data.replace(struct.pack("<i", 0), struct.pack("<i", -1)), "a key of columns"),
    ],
)
def test_numbers_out_of_range(kind: TypeId, broken: Callable[[bytes], bytes], reason: str) -> None:
    writer = ObjectWriter(SERIALIZERS.writers)
    version = SERIALIZERS.latest(kind)
    SERIALIZERS.writers[kind][version](writer, RELEASES["3.2.0"][kind])
    good = bytes(writer.out)
    assert broken(good) != good
    with pytest.raises(CorruptCatalogValueError, match=reason):
        SERIALIZERS.readers[kind][version](NestedReader(broken(good), "value", SERIALIZERS.readers))


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (-1, 1), (0, 1), (126, 1), (127, 2), (16382, 2), (16383, 3), (2097150, 3), (2097151, 4), (268435454, 4),
        (268435455, 5), (2**31 - 1, 5), (-(2**31), 10), (2**63 - 1, 10), (-(2**63), 10), (-2, 10),
    ],
)  # fmt: skip
def test_lengths_of_varints(value: int, size: int) -> None:
    writer = ValueWriter()
    writer.varint(value)
    assert len(writer.out) == size
    assert ValueReader(bytes(writer.out), "value").varint() == value


@pytest.mark.parametrize("power", [base**n for base, most in ((2, 64), (128, 10)) for n in range(most)])
def test_varints_near_powers_return(power: int) -> None:
    for value in (power - 1, power, power + 1, -power, -power - 1):
        writer = ValueWriter()
        if not -(2**63) <= value < 2**63:
            with pytest.raises(ValueError, match="64 bits"):
                writer.varint(value)
            continue
        writer.varint(value)
        assert ValueReader(bytes(writer.out), "value").varint() == value


def test_what_the_format_cannot_hold_is_not_written() -> None:
    for update in (VersionedUpdate(2**31, 0, ()), VersionedUpdate(1, 2**63, ())):
        with pytest.raises(CatalogValueError, match="does not fit"):
            encode(update)
    assert tuple(RELEASES) == RELEASE_NAMES


# Any event returns as it was, in any form that can hold it.


@settings(max_examples=examples(400))
@given(events)
def test_an_event_returns_as_it_was(event: Event) -> None:
    data = encode(event)
    found = decode_exact(data, "value")
    assert found.event == event
    assert found.encode() == data == encode(event)
    assert json.loads(canonical.text(canonical.event(event)))["version"] == event.version


def _of_protocol_1(update: VersionedUpdate) -> VersionedUpdate:
    """Without what it does not have: properties of tables, ids of columns in indexes."""

    def named(index: Index) -> Index:
        return replace(index, column_ids=None, column_names=tuple(map(str, index.column_ids or ())))

    kept: list[Entry] = []
    for entry in update.entries:
        match entry:
            case AlterTablePropertiesEntry():
                continue
            case NewIndexEntry(index):
                kept.append(NewIndexEntry(named(index)))
            case NewSchemaEntry(contents):
                kept.append(NewSchemaEntry(replace(contents, indexes=tuple(map(named, contents.indexes)))))
            case _:
                kept.append(entry)
    return replace(update, entries=tuple(kept))


@settings(max_examples=examples(300))
@given(updates)
def test_protocol_1_holds_what_it_knows(update: VersionedUpdate) -> None:
    """And what it does not keep (timestamps, ids of columns) is the same after one more turn."""
    data = encode(_of_protocol_1(update), PROTOCOL_1)
    found = decode_exact(data, "value")
    assert found.encode() == data
    assert decode(encode(found.event, PROTOCOL_1), "value") == found.event


@settings(max_examples=examples(300))
@given(texts)
def test_texts_return_as_they_were(text: str) -> None:
    data = encode_text(text)
    assert decode_text(data) == text
    assert b"\x00" not in data


@pytest.mark.parametrize(
    ("text", "data"),
    [("", ""), ("a€", "61e282ac"), ("\x00", "c080"), ("\U0001f600", "eda0bdedb880"), ("\ud800x", "eda08078")],
)
def test_texts_in_modified_utf_8(text: str, data: str) -> None:
    assert encode_text(text).hex() == data
    assert decode_text(bytes.fromhex(data)) == text


@pytest.mark.parametrize("data", ["00", "f09f9880", "ff", "c0", "c081", "e080af", "80", "eda0"])
def test_other_bytes_are_no_text(data: str) -> None:
    with pytest.raises(ValueError, match=r"byte|decode"):
        decode_text(bytes.fromhex(data))


@settings(max_examples=examples(200))
@given(entries)
def test_the_canonical_form_says_the_type(entry: Entry) -> None:
    shown = canonical.entry(entry)
    assert shown["@type"] in TypeId.__members__
    assert canonical.text(shown).isascii()


def test_protocol_1_has_no_properties_of_tables() -> None:
    update = VersionedUpdate(1, 0, (AlterTablePropertiesEntry(1, None, None),))
    with pytest.raises(CatalogValueError, match="protocol 1 has no ALTER_TABLE_PROPERTIES"):
        encode(update, PROTOCOL_1)


def test_an_index_that_names_columns_is_not_written_by_the_newest_serializer() -> None:
    with pytest.raises(CatalogValueError, match="index 12 names its columns; resolve the names"):
        encode(VersionedUpdate(1, 0, (RELEASES["3.1.0"][TypeId.NEW_INDEX],)))
