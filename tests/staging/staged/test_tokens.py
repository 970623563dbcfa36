"""Staged changes of tokens, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptMessageError, KeyValueArgumentError, PredicateFailedError
from compaction.staging.format.columns import RecordColumns, concatenated, rows_where, tombstones
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import bytes_field
from compaction.staging.kv.port import Presence
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.staged import rows as module
from compaction.staging.staged.rows import StagedTokens, after_prefix, layered, new_token
from support.timing import examples

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


# Layers merged newest first, compared with dicts, however their batches are cut.

Rows = dict[bytes, bytes]


def stream(rows: Rows, *cuts: int) -> Iterator[RecordColumns]:
    """The rows in batches that end at the cuts (some of them empty)."""
    pairs = sorted(rows.items())
    begin = 0
    for cut in (*sorted(cuts), len(pairs)):
        yield RecordColumns.of(pairs[begin:cut])
        begin = cut


def merged(*layers: Rows, size: int = 2) -> list[tuple[bytes, bytes]]:
    """The merge of layers in batches of `size`; no batch of the result is empty."""
    found = list(layered([stream(rows, *range(size, len(rows), size)) for rows in layers]))
    assert all(len(batch) for batch in found)
    return concatenated(found).pairs()


def model(*layers: Rows) -> list[tuple[bytes, bytes]]:
    found: Rows = {}
    for rows in reversed(layers):
        found |= rows
    return sorted(found.items())


A: Rows = {b"a": b"1", b"c": b"1", b"e": b"1"}
B: Rows = {b"b": b"2", b"d": b"2", b"f": b"2"}


@pytest.mark.parametrize("layers", [(), ({},), ({}, {}), (A, {}), ({}, B), (A, B), (B, A), (A, A), ({}, A, {}, B, {})])
def test_layers_with_and_without_rows(layers: tuple[Rows, ...]) -> None:
    assert merged(*layers) == model(*layers)


def test_the_first_layer_counts() -> None:
    newer, older = {b"a": b"new", b"b": b"new"}, {b"a": b"old", b"b": b"old", b"c": b"old"}
    assert merged(newer, older) == [(b"a", b"new"), (b"b", b"new"), (b"c", b"old")]
    assert merged(older, newer) == model(older)


def test_tombstones_are_kept() -> None:
    """One hides what is below; of a key that exists nowhere else it stays too, and a reader drops it."""
    layers = ({b"a": b"", b"x": b""}, {b"a": b"1", b"b": b"1"})
    assert merged(*layers) == [(b"a", b""), (b"b", b"1"), (b"x", b"")]
    changes = concatenated(list(layered([stream(rows) for rows in layers])))
    assert rows_where(changes, ~tombstones(changes)).pairs() == [(b"b", b"1")]


def test_a_prefix_that_was_deleted() -> None:
    deleted = {b"logs/%04d" % number: b"" for number in range(500)}
    below = {b"logs/%04d" % number: b"1" for number in range(500)} | {b"a": b"1", b"z": b"1"}
    assert merged(deleted, below) == [(b"a", b"1"), *sorted(deleted.items()), (b"z", b"1")]


@pytest.mark.parametrize("deleted", [b"1", b""])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_four_layers(deleted: bytes, size: int) -> None:
    layers = [
        {b"%02d" % key: deleted if key % 3 == 0 else b"%d" % layer for key in range(layer, 40, layer + 1)}
        for layer in range(4)
    ]
    assert merged(*layers, size=size) == model(*layers)
    assert merged(*reversed(layers), size=size) == model(*reversed(layers))


LAYERS = st.lists(
    st.tuples(
        st.dictionaries(st.binary(max_size=2), st.sampled_from([b"", b"1", b"22"]), max_size=30),
        st.lists(st.integers(0, 30), max_size=6),
    ),
    max_size=9,
)


@settings(max_examples=examples(400))
@given(LAYERS, st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 30, 1 << 20]))
def test_any_layers(
    layers: list[tuple[Rows, list[int]]], buffered: int, smallest: int, largest: int, nbytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUFFERED", buffered)
        patch.setattr(module, "SMALLEST_SHARE", smallest)
        patch.setattr(module, "LARGEST_BATCH", largest)
        patch.setattr(module, "BUFFERED_BYTES", nbytes)
        found = list(layered([stream(rows, *cuts) for rows, cuts in layers]))
    assert all(len(batch) for batch in found)
    assert concatenated(found).pairs() == model(*(rows for rows, _ in layers))


def test_hundreds_of_small_layers_and_a_large_one() -> None:
    large = {b"%07d" % key: b"large" for key in range(0, 300_000, 3)}
    small = [
        {b"%07d" % ((layer * 7919 + row * 104_729) % 300_000): b"%d" % layer for row in range(9)}
        for layer in range(400)
    ]
    layers = [*small[:200], large, *small[200:]]
    assert merged(*layers, size=1000) == model(*layers)


def test_the_first_batch_needs_little_of_each_layer() -> None:
    """A listing of a few keys does not wait for all of them."""
    read = [0] * 5

    def endless(layer: int) -> Iterator[RecordColumns]:
        for page in range(10**6):
            read[layer] += 100
            yield RecordColumns.of([(b"%09d/%03d" % (page, row), b"1") for row in range(100)])

    assert len(next(layered([endless(layer) for layer in range(5)]))) >= 100
    assert max(read) <= 300


def test_memory_is_bounded_by_a_share_of_each_layer() -> None:
    """Rows that are read and not yet returned, however far apart the layers' keys are."""
    ahead = [0]
    most = [0]

    def counted(layer: int) -> Iterator[RecordColumns]:
        for page in range(40):
            ahead[0] += 1000
            most[0] = max(most[0], ahead[0])
            yield RecordColumns.of(
                [(b"%d/%09d" % (layer % 2, page * 1000 + row), b"%d" % layer) for row in range(1000)]
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUFFERED", 10_000)
        returned = 0
        for batch in layered([counted(layer) for layer in range(10)]):
            returned += len(batch)
            ahead[0] = 0
    assert returned == 80_000
    assert most[0] <= 10 * 2000
