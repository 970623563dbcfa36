"""Staged changes of tokens, on both databases."""

from __future__ import annotations

import re

import pytest

from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError, PredicateFailedError
from compaction.staging.format.columns import RecordColumns, concatenated
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import bytes_field
from compaction.staging.kv.port import Presence
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.staged.rows import StagedTokens, after_prefix, new_token

ONE, TWO = frame_value(b"1", b"one"), frame_value(b"2", b"")


@pytest.fixture
def tokens(kv: SqlKeyValueStore) -> StagedTokens:
    return StagedTokens(kv)


def changes_of(
    tokens: StagedTokens, token: str, start: bytes = b"", stop: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    return concatenated(list(tokens.changes(token, start, stop, page=2))).pairs()


def test_names_of_tokens() -> None:
    names = {new_token("repo", "feature-1") for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"repo-feature-1:[0-9a-f-]{14}4[0-9a-f-]{21}", name) for name in names)


def test_set_delete_and_read(tokens: StagedTokens) -> None:
    assert tokens.get("t", b"k") is None
    tokens.set("t", b"k", ONE)
    assert tokens.get("t", b"k") == ONE
    tokens.set_tombstone("t", b"k")
    assert tokens.get("t", b"k") == b""
    tokens.set("t", b"k", TWO)
    assert tokens.get("t", b"k") == TWO
    tokens.remove("t", b"k")
    tokens.remove("t", b"k")
    assert tokens.get("t", b"k") is None
    with pytest.raises(KeyValueArgumentError):
        tokens.set("t", b"k", frame_value(b"", b"data"))


def test_a_condition_is_the_row_as_it_was_read(tokens: StagedTokens) -> None:
    """Also of a row that would be encoded in another way here."""
    raw = bytes_field(3, b"one") + bytes_field(9, b"unknown") + bytes_field(2, b"1") + bytes_field(1, b"k")
    tokens.kv.set("t", b"k", raw)
    row = tokens.read("t", b"k")
    assert row is not None
    assert (row.value, row.raw) == (ONE, raw)
    tokens.set_if("t", b"k", TWO, row.raw)
    with pytest.raises(PredicateFailedError):
        tokens.set_if("t", b"k", TWO, row.raw)
    tokens.set_if("t", b"new", b"", Presence.ABSENT)
    with pytest.raises(PredicateFailedError):
        tokens.set_if("t", b"new", ONE, Presence.ABSENT)
    assert changes_of(tokens, "t") == [(b"k", TWO), (b"new", b"")]


def test_an_update_may_leave_what_is_there(tokens: StagedTokens) -> None:
    tokens.update("t", b"k", lambda value: ONE if value is None else None)
    tokens.update("t", b"k", lambda value: TWO if value is None else None)
    assert tokens.get("t", b"k") == ONE
    tokens.update("t", b"k", lambda value: b"" if value == ONE else None)
    assert tokens.get("t", b"k") == b""

    def late(value: bytes | None) -> bytes:
        tokens.set("t", b"k", ONE)
        return TWO

    with pytest.raises(PredicateFailedError):
        tokens.update("t", b"k", late)
    assert tokens.get("t", b"k") == ONE


def test_changes_in_order_and_within_bounds(tokens: StagedTokens) -> None:
    rows = [(b"%02d" % number, b"" if number % 3 == 0 else ONE) for number in range(9)]
    tokens.set_many("t", RecordColumns.of(rows))
    tokens.set("other", b"03", TWO)
    assert changes_of(tokens, "t") == rows
    assert changes_of(tokens, "t", b"02", b"05") == rows[2:5]
    assert changes_of(tokens, "t", b"055") == rows[6:]
    assert changes_of(tokens, "none") == []
    assert [len(batch) for batch in tokens.changes("t", page=2)] == [2, 4, 3]


def test_a_damaged_row_is_named_where_it_is_read(tokens: StagedTokens) -> None:
    tokens.set("t", b"a", ONE)
    tokens.kv.set("t", b"k", bytes_field(1, b"other"))
    with pytest.raises(CorruptMessageError, match="t: row 'k'"):
        tokens.get("t", b"k")
    with pytest.raises(CorruptMessageError, match="t: row 'k'"):
        changes_of(tokens, "t")


def test_drop(tokens: StagedTokens) -> None:
    tokens.set_many("t", RecordColumns.of([(b"%05d" % number, b"") for number in range(2500)]))
    tokens.set("u", b"k", ONE)
    scan = tokens.changes("t")
    next(scan)
    assert tokens.drop("t") == 2500
    assert list(scan) == []
    assert tokens.drop("t") == 0
    assert changes_of(tokens, "u") == [(b"k", ONE)]


@pytest.mark.parametrize("prefix", [b"a", b"a/", b"\xff", b"a\xff", b"a\xff\xff", b"\x00", b"", b"b\xfe"])
def test_drop_by_prefix(tokens: StagedTokens, prefix: bytes) -> None:
    keys = [
        b"\x00",
        b"a",
        b"a/",
        b"a/b",
        b"a0",
        b"a\xff",
        b"a\xff\x01",
        b"a\xff\xff",
        b"a\xff\xffz",
        b"b",
        b"b\xfe1",
        b"b\xff",
        b"\xff",
        b"\xff\x00",
    ]
    tokens.set_many("t", RecordColumns.of([(key, ONE) for key in sorted(keys)]))
    gone = [key for key in keys if key.startswith(prefix)]
    assert tokens.drop_prefix("t", prefix) == len(gone)
    assert [key for key, _ in changes_of(tokens, "t")] == sorted(set(keys) - set(gone))


def test_a_drop_that_is_interrupted_goes_on(tokens: StagedTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens.set_many("t", RecordColumns.of([(b"%05d" % number, b"") for number in range(2500)]))
    calls = []
    delete = tokens.kv.delete_many

    def once(partition: str, keys: list[bytes]) -> None:
        calls.append(len(keys))
        if len(calls) == 2:
            raise KeyboardInterrupt
        delete(partition, keys)
        if len(calls) == 3:
            tokens.set("t", b"behind the scan"[:6], ONE)

    monkeypatch.setattr(tokens.kv, "delete_many", once)
    with pytest.raises(KeyboardInterrupt):
        tokens.drop("t")
    assert len(changes_of(tokens, "t")) == 1500
    assert tokens.drop("t") == 1501
    assert changes_of(tokens, "t") == []


@pytest.mark.parametrize(
    ("prefix", "above"),
    [
        (b"", None),
        (b"a", b"b"),
        (b"a\xff", b"b"),
        (b"\xff", None),
        (b"\xff\xff", None),
        (b"a\x00", b"a\x01"),
        (b"\xfe\xff", b"\xff"),
    ],
)
def test_the_end_of_a_prefix(prefix: bytes, above: bytes | None) -> None:
    assert after_prefix(prefix) == above
