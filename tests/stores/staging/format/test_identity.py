"""Ids and identities as lakeFS computes them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import ContentIdentity, RangeIdentity, commit_id, entry_identity
from compaction.staging.format.messages import CatalogEntry, CommitData, ProtoTimestamp
from support.stores.staging_tables import ANY_RECORDS, Record


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
