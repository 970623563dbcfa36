"""Any event returns as it was, in any form that can hold it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import PROTOCOL_1, decode, decode_exact, encode
from compaction.catalogs.codec.primitives import TypeId, decode_text, encode_text
from compaction.catalogs.errors import CatalogValueError
from compaction.catalogs.model.descriptors import Index
from compaction.catalogs.model.entries import (
    AlterTablePropertiesEntry,
    Entry,
    Event,
    NewIndexEntry,
    NewSchemaEntry,
    VersionedUpdate,
)
from support.catalogs.events import entries, events, texts, updates
from support.catalogs.samples import RELEASES
from support.depth import examples


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
