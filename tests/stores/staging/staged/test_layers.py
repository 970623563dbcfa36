"""Layers merged newest first, compared with dicts, however their batches are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.format.columns import RecordColumns, concatenated, rows_where, tombstones
from compaction.staging.staged import rows as module
from compaction.staging.staged.rows import layered
from support.depth import examples

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
