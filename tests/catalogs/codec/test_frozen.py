"""No released serializer changes: `frozen.json` has the bytes that each release wrote of one sample of every type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.codec.codec import RELEASES, SERIALIZERS, Serializer, SerializerTable
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId
from compaction.catalogs.errors import SerializerTableError
from support.catalogs import samples

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
    one = samples.RELEASES[release][kind]
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


def row(version: int, since: str = "3.0.0") -> Serializer:
    def read(reader: NestedReader) -> Any:
        return reader.number()

    return Serializer(TypeId.ZONE, version, since, read, lambda writer, item: writer.number(item))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (lambda: [row(0)], "not positive"),
        (lambda: [row(-1)], "not positive"),
        (lambda: [row(2)], "have to be 1, 2, 3"),
        (lambda: [row(1), row(3)], "have to be 1, 2, 3"),
        (lambda: [row(1), row(1)], "twice"),
        (lambda: [row(1, " ")], "blank"),
    ],
)
def test_a_wrong_table_is_refused(rows: Callable[[], list[Serializer]], reason: str) -> None:
    with pytest.raises(SerializerTableError, match=reason):
        SerializerTable(rows())
