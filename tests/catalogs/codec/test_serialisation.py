"""What the tests of the reference say about serialisation, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.catalogs.codec.codec import SERIALIZERS, Serializer, SerializerTable, decode, decode_exact, encode
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId, ValueReader, ValueWriter
from compaction.catalogs.errors import SerializerTableError, UnsupportedCatalogValueError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.applying import resolved
from support.catalogs.samples import HASH, SORTED, TABLE, ZONE, named


def row(version: int, since: str = "3.0.0") -> Serializer:
    return Serializer(TypeId.ZONE, version, since, lambda reader: reader.number(), lambda writer, item: None)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row(0)], "not positive"),
        ([row(1), row(3)], "have to be 1, 2, 3"),
        ([row(1), row(1)], "twice"),
        ([row(1, "")], "blank"),
        ([row(1, "  ")], "blank"),
    ],
)
def test_serialisation_registry_error_cases(rows: list[Serializer], reason: str) -> None:
    """Serialisation: registry error cases: version not positive, not incremented by one, duplicate, blank since."""
    with pytest.raises(SerializerTableError, match=reason):
        SerializerTable(rows)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0200110003026502630003", "type"),
        ("0200ff7f0300", "type"),
        ("02001100040265020100", "version 3 of the serializer of VERSIONED_UPDATE"),
        ("02001100010265020100", "version 0 of the serializer of VERSIONED_UPDATE"),
    ],
)
def test_serialisation_what_the_registry_does_not_have(value: str, reason: str) -> None:
    """Serialisation: registry error cases: unknown type id, required version not found."""
    with pytest.raises(UnsupportedCatalogValueError, match=reason):
        decode(bytes.fromhex(value.replace(" ", "")), "value")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (-1, 1),
        (0, 1),
        (126, 1),
        (127, 2),
        (16382, 2),
        (16383, 3),
        (2097150, 3),
        (2097151, 4),
        (268435454, 4),
        (268435455, 5),
    ],
)
def test_serialisation_varint_lengths(value: int, size: int) -> None:
    """Serialisation: varint lengths: -1,0,126 ->1; 127 ->2; 16382 ->2; 16383 ->3; 2097150 ->3; 2097151 ->4; 268435454
    ->4; 268435455 ->5.
    """
    writer = ValueWriter()
    writer.varint(value)
    assert len(writer.out) == size


def test_serialisation_varints_at_powers() -> None:
    """Serialisation: round trip at powers of 128 and of 2."""
    powers = [128**n for n in range(9)] + [2**n for n in range(63)]
    for value in powers:
        writer = ValueWriter()
        writer.varint(value)
        reader = ValueReader(bytes(writer.out), "value")
        assert (reader.varint(), reader.at) == (value, len(writer.out))


def test_serialisation_entry_list() -> None:
    """Serialisation: entry list: each object with its header."""
    update = model.VersionedUpdate(7, 500, (model.DropTableEntry(10), model.AdvanceIdsEntry(2), model.DropZoneEntry(5)))
    data = encode(update)
    assert decode(data, "value") == update
    # Protocol, header, version, delay; then the count and three headers: type and version.
    assert data[8:] == bytes.fromhex("04 0500 03 0b 0f00 03 03 0600 03 06".replace(" ", ""))


def test_serialisation_compact_list() -> None:
    """Serialisation: compact list: one header for all, none for no object."""
    writer = ObjectWriter(SERIALIZERS.writers)
    writer.alike(TypeId.ZONE, (ZONE, replace(ZONE, id=6)))
    two = bytes(writer.out)
    header = bytes([TypeId.ZONE, 0, 3])
    assert two.count(header) == 1
    assert two[:1] + two[1:4] == b"\x03" + header
    reader = NestedReader(two, "value", SERIALIZERS.readers)
    assert [zone.id for zone in reader.alike(frozenset({TypeId.ZONE}))] == [5, 6]
    writer = ObjectWriter(SERIALIZERS.writers)
    writer.alike(TypeId.ZONE, ())
    assert bytes(writer.out) == b"\x01"


def test_serialisation_object_collection() -> None:
    """Serialisation: object collection: a count, then elements without headers, as the columns of a sorted index."""
    data = encode(model.VersionedUpdate(1, 0, (model.NewIndexEntry(SORTED),)))
    assert data.endswith(bytes.fromhex("03 03 03 02 00".replace(" ", "")))
    assert decode_exact(data, "value").encode() == data


@pytest.mark.parametrize(("names", "ids"), [(("K", "€"), (0, 1)), (("€", "V"), (1, 2)), (("V", "€"), (2, 1))])
def test_serialisation_index_upgrade(names: tuple[str, ...], ids: tuple[int, ...]) -> None:
    """Serialisation: index upgrade by names over the table's columns gives ids in the order of the names; a second
    upgrade returns same object.
    """
    old = replace(named(HASH), column_names=names)
    upgraded = resolved(old, TABLE, 1)
    assert (upgraded.column_ids, upgraded.column_names) == (ids, None)
    assert resolved(upgraded, TABLE, 1) is upgraded
    moved = replace(TABLE, versions=((TABLE.columns[0], *reversed(TABLE.columns[1:])),))
    assert resolved(old, moved, 1).column_ids == ids
