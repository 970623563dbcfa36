"""Diffs of trees and of staged changes: by identity, without reading what both trees have."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import MissingRangeError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import BreakRule
from compaction.staging.staged.rows import layered
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import DiffColumns, DiffKind, diff, diff_changes, union_diffs
from compaction.staging.tree.storage import RangeStorage
from support.depth import examples
from support.stores.staging_trees import (
    CHANGES,
    CONTENTS,
    KEYS,
    RULES,
    Changes,
    Content,
    batches,
    changed_content,
    content_of,
    differing,
    open_tree_storage,
    valued,
    write_content,
    write_groups,
)

Rows = list[tuple[bytes, DiffKind, bytes, bytes]]
A, B, A2 = valued("a"), valued("b"), valued("a", b"elsewhere")


@pytest.fixture
def storage(tmp_path: Path) -> RangeStorage:
    return open_tree_storage(tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder each time."""
    root = tmp_path_factory.mktemp("trees")
    return (root / str(number) for number in itertools.count())


def rows_of(found: Iterable[DiffColumns]) -> Rows:
    every = list(found)
    assert all(len(item) for item in every)
    return [row for item in every for row in item.rows()]


def expected_rows(left: Content, right: Content) -> Rows:
    """By the model."""

    def kind(old: bytes, new: bytes) -> DiffKind:
        return (DiffKind.CHANGED if new else DiffKind.REMOVED) if old else DiffKind.ADDED

    return [(key, kind(*values), *values) for key, values in differing(left, right).items()]


STAGED = {
    "D1 nothing": ({b"k": A}, {}, []),
    "D2 added": ({}, {b"k": A}, [(b"k", DiffKind.ADDED, b"", A)]),
    "D3 changed": ({b"k": A}, {b"k": B}, [(b"k", DiffKind.CHANGED, A, B)]),
    "D4 removed": ({b"k": A}, {b"k": b""}, [(b"k", DiffKind.REMOVED, A, b"")]),
    "D5 and D6 the same identity": ({b"k": A}, {b"k": A2}, []),
    "a deletion of a missing key": ({b"k": A}, {b"j": b"", b"l": b""}, []),
    "behind all ranges": ({b"k": A}, {b"k": b"", b"l": B}, [(b"k", DiffKind.REMOVED, A, b""), (b"l", 1, b"", B)]),
}


@pytest.mark.parametrize("name", STAGED)
def test_staged_changes_against_a_tree(storage: RangeStorage, name: str) -> None:
    base, changes, expected = STAGED[name]
    tree = write_content(storage, base)
    assert rows_of(diff_changes(storage, tree, batches(changes))) == expected
    assert rows_of(diff(storage, tree, write_content(storage, changed_content(base, changes)))) == expected


@settings(max_examples=examples(200))
@given(CONTENTS, CONTENTS, CHANGES, RULES, st.one_of(st.just(b""), KEYS), st.integers(1, 30))
def test_diffs_are_those_of_the_model(
    folders: Iterator[Path], left: Content, other: Content, changes: Changes, rule: BreakRule, start: bytes, step: int
) -> None:
    """Of two trees, of a tree and one made of it (which share ranges), and of staged changes; from any key on (D23)."""
    storage = open_tree_storage(next(folders), rule)
    left_id, other_id = write_content(storage, left), write_content(storage, other)
    made = apply(storage, left_id, batches(changes, step), allow_empty=True).metarange_id
    for right_id in (other_id, made, left_id, ""):
        right = content_of(storage, right_id)
        for item, one_id, two, two_id in ((left, left_id, right, right_id), (right, right_id, left, left_id)):
            expected = expected_rows(item, two)
            assert rows_of(diff(storage, one_id, two_id)) == expected
            assert rows_of(diff(storage, one_id, two_id, start)) == [row for row in expected if row[0] >= start]
    assert rows_of(diff_changes(storage, left_id, batches(changes, step))) == expected_rows(
        left, changed_content(left, changes)
    )


def test_ranges_of_both_trees_are_not_read(storage: RangeStorage) -> None:
    groups = [dict.fromkeys((b"%d1" % part, b"%d2" % part), A) for part in range(5)]
    left = write_groups(storage, groups)
    right = apply(storage, left, batches({b"21": B})).metarange_id
    shared = {info.id for info in storage.ranges(left)} & {info.id for info in storage.ranges(right)}
    assert len(shared) == 4
    storage.objects.delete(storage.path(item) for item in shared)
    fresh = RangeStorage(storage.objects, rule=storage.rule)
    assert rows_of(diff(fresh, left, right)) == [(b"21", DiffKind.CHANGED, A, B)]
    assert rows_of(diff_changes(fresh, left, batches({b"20": B, b"21": B, b"22": A2}))) == [
        (b"20", DiffKind.ADDED, b"", B),
        (b"21", DiffKind.CHANGED, A, B),
    ]


UNIONS = {
    "D16 both empty": ("", "", ""),
    "D17 only the first": ("abc", "", "ABC"),
    "D18 only the second": ("", "abc", "abc"),
    "D19 in turn": ("ac", "bd", "AbCd"),
    "D20 one before the other": ("ab", "cd", "ABcd"),
    "D21 the same keys": ("ab", "ab", "AB"),
    "some of the same keys": ("bc", "abcd", "aBCd"),
}


@pytest.mark.parametrize("step", [1, 2, 10])
@pytest.mark.parametrize("name", UNIONS)
def test_union_of_two_diffs(storage: RangeStorage, name: str, step: int) -> None:
    """Capitals are rows of the first."""
    one, other, expected = UNIONS[name]

    def found(keys: str, value: bytes) -> Iterator[DiffColumns]:
        return diff_changes(storage, "", batches({key.encode(): value for key in keys}, step))

    union = rows_of(union_diffs(found(one, A), found(other, B)))
    assert [(key, right) for key, _, _, right in union] == [
        (letter.lower().encode(), A if letter.isupper() else B) for letter in expected
    ]


def test_keys_that_hide_the_second_diff(storage: RangeStorage) -> None:
    staged = diff_changes(storage, "", batches({b"a": A}))
    compacted = diff_changes(storage, "", batches({b"b": B, b"c": B, b"d": B}, 1))
    found = union_diffs(staged, compacted, hiding=batches({b"a": b"", b"c": b"", b"x": b""}))
    assert [row[0] for row in rows_of(found)] == [b"a", b"b", b"d"]


@pytest.mark.parametrize("failing", ["first", "second", "both"])
def test_errors_of_either_diff_end_the_union(storage: RangeStorage, failing: str) -> None:
    """D22 and D24."""

    def found(side: str) -> Iterator[DiffColumns]:
        yield from diff_changes(storage, "", batches({b"a": A}))
        if failing in (side, "both"):
            raise InterruptedError(side)

    union = union_diffs(found("first"), found("second"))
    with pytest.raises(InterruptedError):
        list(union)


def test_a_missing_range_ends_a_diff(storage: RangeStorage) -> None:
    left, right = write_content(storage, {b"a": A, b"b": A}), write_content(storage, {b"a": B})
    (info,) = storage.ranges(left)
    storage.objects.delete([storage.path(info.id)])
    with pytest.raises(MissingRangeError, match=f"which metarange {left} lists") as missing:
        list(diff(storage, left, right))
    assert missing.value.table == info.id


@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(1, 9))
def test_the_newest_layer_wins(layers: list[Changes], step: int) -> None:
    expected: dict[bytes, bytes] = {}
    for layer in reversed(layers):
        expected |= layer
    found: list[RecordColumns] = list(layered([batches(layer, step) for layer in layers]))
    assert [pair for item in found for pair in item.pairs()] == sorted(expected.items())
