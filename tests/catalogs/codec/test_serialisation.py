"""What the tests of the reference say about serialisation, line by line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import (
    RELEASES,
    SERIALIZERS,
    Serializer,
    SerializerTable,
    decode,
    decode_exact,
    encode,
)
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId, ValueReader, ValueWriter
from compaction.catalogs.errors import CatalogValueError, SerializerTableError, UnsupportedCatalogValueError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.applying import resolved
from support.catalogs import events
from support.catalogs.events import HASH, SORTED, TABLE, ZONE, named


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


# No released serializer changes: `frozen.json` has the bytes that each release wrote of one sample of every type.

FROZEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "frozen.json").read_text())


def table_of(release: str) -> SerializerTable:
    """What a release knew."""
    return SerializerTable(row for row in SERIALIZERS.rows if row.since <= release)


CASES = [
    (release, kind)
    for release in RELEASES
    for kind in sorted({row.type for row in SERIALIZERS.rows if row.since <= release})
]


@pytest.mark.parametrize(("release", "kind"), CASES, ids=lambda case: getattr(case, "name", case))
def test_each_release_is_written_and_read_as_it_was(release: str, kind: TypeId) -> None:
    frozen = bytes.fromhex(FROZEN[release][kind.name])
    known = table_of(release)
    one = events.RELEASES[release][kind]
    writer = ObjectWriter(known.writers)
    known.writers[kind][known.latest(kind)](writer, one)
    assert bytes(writer.out).hex() == frozen.hex()
    reader = NestedReader(frozen, kind.name, SERIALIZERS.readers)
    assert SERIALIZERS.readers[kind][known.latest(kind)](reader) == one
    assert reader.at == len(frozen)


def test_every_serializer_is_frozen() -> None:
    frozen = {(TypeId[name], table_of(release).latest(TypeId[name])) for release in FROZEN for name in FROZEN[release]}
    assert frozen == {(row.type, row.version) for row in SERIALIZERS.rows}
    assert list(FROZEN) == list(RELEASES)


def test_versions_and_releases_of_the_table() -> None:
    """Written out: what is added is added here, and what is here never changes."""
    three = {TypeId.HASH_INDEX, TypeId.SORTED_INDEX, TypeId.TABLE, TypeId.TABLE_COLUMN, TypeId.TABLE_SCHEMA_VERSIONS}
    latest = {kind: 3 if kind in three else 2 for kind in TypeId} | {TypeId.ALTER_TABLE_PROPERTIES: 1}
    assert {kind: SERIALIZERS.latest(kind) for kind in TypeId} == latest
    released = {1: "3.0.0", 2: "3.1.0", 3: "3.2.0"}
    assert {
        (row.type, row.version, row.since) for row in SERIALIZERS.rows if row.type is not TypeId.ALTER_TABLE_PROPERTIES
    } == {
        (kind, version, released[version])
        for kind, newest in latest.items()
        if kind is not TypeId.ALTER_TABLE_PROPERTIES
        for version in range(1, newest + 1)
    }
    assert [row.since for row in SERIALIZERS.rows if row.type is TypeId.ALTER_TABLE_PROPERTIES] == ["3.2.0"]


def frozen_row(version: int, since: str = "3.0.0") -> Serializer:
    def read(reader: NestedReader) -> Any:
        return reader.number()

    return Serializer(TypeId.ZONE, version, since, read, lambda writer, item: writer.number(item))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (lambda: [frozen_row(0)], "not positive"),
        (lambda: [frozen_row(-1)], "not positive"),
        (lambda: [frozen_row(2)], "have to be 1, 2, 3"),
        (lambda: [frozen_row(1), frozen_row(3)], "have to be 1, 2, 3"),
        (lambda: [frozen_row(1), frozen_row(1)], "twice"),
        (lambda: [frozen_row(1, " ")], "blank"),
    ],
)
def test_a_wrong_table_is_refused(rows: Callable[[], list[Serializer]], reason: str) -> None:
    with pytest.raises(SerializerTableError, match=reason):
        SerializerTable(rows())


# Values that the reference wrote: each decodes to what its own reader holds, and is written again byte for byte.


def lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


@pytest.mark.fixtures
def test_every_file_decodes_as_the_reference_reads_it_and_is_written_again(shared_fixtures: Path) -> None:
    """`reencodeLatest*`: what the reference writes of it with its newest serializers, where it can."""
    root = shared_fixtures / "ignite"
    records = list(lines(root / "reader_head.jsonl.gz"))
    for record in records:
        name = record["file"]
        data = (root / name).read_bytes()
        found = decode_exact(data, name)
        assert canonical.text(canonical.event(found.event)) == canonical.text(record["value"]), name
        assert found.protocol == record["protocol"]
        assert found.encode() == data, name
        if "reencodeError" in record:
            with pytest.raises(CatalogValueError, match="names its columns"):
                encode(found.event, found.protocol)
            continue
        newest = encode(found.event, found.protocol)
        assert (len(newest), newest == data) == (record["reencodeLatestBytes"], record["reencodeLatestEqual"]), name
    assert len(records) == len(list(root.glob("serialization_v*/*.bin"))) > 30


@pytest.mark.fixtures
@pytest.mark.parametrize("seed", [11, 14])
def test_values_of_histories(shared_fixtures: Path, seed: int) -> None:
    """Both ways with the newest serializers: what was decoded is written with the same bytes, without a trace, except
    for the order of names of dropped columns and of lists in snapshots, which the reference leaves to chance.
    """
    total = 0
    for record in lines(shared_fixtures / "ignite-replay" / f"head_seed{seed}.jsonl.gz"):
        puts = [put for transaction in record.get("txns", ()) for put in transaction["puts"]]
        values = [bytes.fromhex(data) for key, data in puts if key.startswith("catalog.update.")]
        for data, expected in zip(values, record.get("decoded", ()), strict=True):
            found = decode_exact(data, "value")
            assert canonical.text(canonical.event(found.event)) == canonical.text(expected)
            assert found.encode() == data
            assert sorted(encode(found.event)) == sorted(data)
            total += 1
    assert total > 90
