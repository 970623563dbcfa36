"""Three-way merges: what they contain under each strategy, which ranges they reuse, and what is a conflict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import MergeConflictError, MissingRangeError, NoChangesError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import BreakRule
from compaction.staging.staged.rows import layered
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import (
    DiffColumns,
    DiffKind,
    MergedTree,
    MergeStrategy,
    diff,
    diff_changes,
    merge,
    union_diffs,
)
from compaction.staging.tree.storage import RangeStorage
from support.staging.staging_trees import (
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
    groups_of,
    merged_content,
    open_tree_storage,
    valued,
    write_content,
    write_groups,
)
from support.timing import examples


def tree(storage: RangeStorage, text: str) -> str:
    """Ranges of `key + identity`: "a1,b1 c2" are two ranges, with a and b of identity 1 and c of identity 2."""
    groups = [
        {record[:1].encode(): valued(record[1:]) for record in group.split(",")} for group in text.split() if group
    ]
    return write_groups(storage, groups)


IDENTITIES = {valued(str(number)): str(number) for number in range(10)}


def text_of(storage: RangeStorage, tree_id: str) -> str:
    return " ".join(
        ",".join(key.decode() + IDENTITIES[value] for key, value in group) for group in groups_of(storage, tree_id)
    )


# Base, source, destination, and what they become: without a strategy, or with either one where that is a conflict.
BASE = "a1,c1 e1,g1"
CASES: dict[str, tuple[str, str, str, str | tuple[str, str]]] = {
    "destination added a range before": ("e1,g1", "e1,g2", "a1,c1 e1,g1", "a1,c1 e1,g2"),
    "source added a range before": ("e1,g1", "a1,c1 e1,g1", "e1,g2", "a1,c1 e1,g2"),
    "destination removed a range before": (BASE, "a1,c1 e1,g2", "e1,g1", "e1,g2"),
    "source removed a range before": (BASE, "e1,g1", "a1,c1 e1,g2", "e1,g2"),
    "source changed inside": (BASE, "a1,b1,c1 e1,g1", BASE, "a1,b1,c1 e1,g1"),
    "source changed inside, destination elsewhere": (BASE, "a1,b1,c1 e1,g1", "a1,c1 e1,g2", "a1,b1,c1 e1,g2"),
    "destination changed inside, source elsewhere": (BASE, "a1,c1 e1,g2", "a1,b1,c1 e1,g1", "a1,b1,c1 e1,g2"),
    "source appended": (BASE, f"{BASE} x1,z1", "a2,c1 e1,g1", "a2,c1 e1,g1 x1,z1"),
    "destination appended": (BASE, "a2,c1 e1,g1", f"{BASE} x1,z1", "a2,c1 e1,g1 x1,z1"),
    "source appended and removed": (BASE, "a1,c1 x1,z1", "a2,c1 e1,g1", "a2,c1 x1,z1"),
    "destination appended and removed": (BASE, "a2,c1 e1,g1", "a1,c1 x1,z1", "a2,c1 x1,z1"),
    "both appended": (BASE, f"{BASE} k1,m1", f"{BASE} x1,z1", f"{BASE} k1,m1 x1,z1"),
    "source overlaps": ("a1,c1 e1,g1", "a1,e1 g1", "a1,c1 e1,g2", "a1,e1,g2"),
    "destination overlaps": ("a1,c1 e1,g1", "a1,c1 e1,g2", "a1,e1 g1", "a1,e1,g2"),
    "source removed at the end": (BASE, "a1,c1", "a2,c1 e1,g1", "a2,c1"),
    "destination removed at the end": (BASE, "a2,c1 e1,g1", "a1,c1", "a2,c1"),
    "both added to a range": (BASE, "a1,b1,c1 e1,g1", "a1,c1,d1 e1,g1", "a1,b1,c1,d1 e1,g1"),
    "source removed a range": (BASE, "a1,c1", BASE, "a1,c1"),
    "destination removed a range": (BASE, "a2,c1 e1,g1", "a1,c1", "a2,c1"),
    "key removed, same bounds": ("a1,b1,c1", "a1,c1", "a1,b1,c2", "a1,c2"),
    "key removed, other bounds": ("a1,b1,c1", "b1,c1", "a1,b1,c2", "b1,c2"),
    "empty source and base, both trees": ("", "", "a1", "a1"),
    "source emptied": (BASE, "", BASE, ""),
    "destination removed a range, added one across its edge": (BASE, "a1,c1 e1,g2", "b1,d1 e1,g1", "b1,d1 e1,g2"),
    "destination removed a range and added across both": (BASE, "a1,c1,d1 e1,g1", "b1,f1,g1", "b1,d1,f1,g1"),
    "both changed alike": (BASE, "a2,c1 e1,g1", "a2,c1 e2,g1", "a2,c1 e2,g1"),
    "both are alike": (BASE, "a2,c1 e1,g1", "a2,c1 e1,g1", "a2,c1 e1,g1"),
    "destination removed all, source added": (BASE, f"{BASE} x1", "", "x1"),
    "source removed all, destination added": (BASE, "", f"{BASE} x1", "x1"),
    "same identity under another key": ("a1,c1", "b1,c1", "a1,c1,d1", "b1,c1,d1"),
    "destination removed all, before the base": ("m1,n1", "a1 m1,n1", "b1", "a1 b1"),
    "destination is the base": (BASE, "a2,c1", BASE, "a2,c1"),
    "key before a range of the source": ("e1,g1", "e2,g1", "d1,e1,g1", "d1,e2,g1"),
    "key behind a range of the source": ("e1,g1", "e2,g1", "e1,g1,h1", "e2,g1,h1"),
    "key before a range of the destination": ("e1,g1", "d1,e1,g1", "e2,g1", "d1,e2,g1"),
    "key behind a range of the destination": ("e1,g1", "e1,g1,h1", "e2,g1", "e2,g1,h1"),
    "both deleted": ("a1,b1,c1", "a1,c2", "a2,c1", "a2,c2"),
    "both deleted ranges": (f"{BASE} x1", "a2,c1 x1", "a1,c1 x2", "a2,c1 x2"),
    "changed differently": ("a1,b1,c1", "a1,b2,c1", "a1,b3,c1", ("a1,b2,c1", "a1,b3,c1")),
    "added differently": ("a1,c1", "a1,b2,c1", "a1,b3,c1", ("a1,b2,c1", "a1,b3,c1")),
    "source changed, destination deleted": ("a1,b1,c1", "a1,b2,c1", "a1,c1", ("a1,b2,c1", "a1,c1")),
    "source deleted, destination changed": ("a1,b1,c1", "a1,c1", "a1,b2,c1", ("a1,c1", "a1,b2,c1")),
    "source changed a range that the destination deleted": (BASE, "a1,c1 e2,g1", "a1,c1", ("a1,c1 e2", "a1,c1")),
    "destination changed a range that the source deleted": (BASE, "a1,c1", "a1,c1 e2,g1", ("a1,c1", "a1,c1 e2")),
}


@pytest.mark.parametrize("strategy", MergeStrategy)
@pytest.mark.parametrize("name", CASES)
def test_three_way_merges(storage: RangeStorage, name: str, strategy: MergeStrategy) -> None:
    *given_trees, expected = CASES[name]
    base, source, destination = (tree(storage, text) for text in given_trees)
    contents = [content_of(storage, item) for item in (base, source, destination)]
    assert bool(merged_content(*contents)[1]) == isinstance(expected, tuple), "the model"
    if source == base:
        with pytest.raises(NoChangesError):
            merge(storage, base, source, destination, strategy)
        return
    if isinstance(expected, tuple):
        if strategy is MergeStrategy.NONE:
            with pytest.raises(MergeConflictError) as conflict:
                merge(storage, base, source, destination, strategy)
            assert list(conflict.value.keys) == merged_content(*contents)[1]
            return
        expected = expected[strategy is MergeStrategy.DEST_WINS]
    result = merge(storage, base, source, destination, strategy)
    assert text_of(storage, result.metarange_id) == expected
    sides = {info.id for item in (source, destination) for info in storage.ranges(item)}
    assert result.reused == sum(info.id in sides for info in storage.ranges(result.metarange_id)) - sum(
        info.id in sides for info in result.written
    )


def test_shortcuts(storage: RangeStorage) -> None:
    base, other = tree(storage, BASE), tree(storage, "a2")
    with pytest.raises(NoChangesError, match="the source has no changes"):
        merge(storage, base, base, other)
    assert merge(storage, base, other, base) == MergedTree(other, (), 1)
    assert merge(storage, base, other, other) == MergedTree(other, (), 1)
    assert merge(storage, "", other, "") == MergedTree(other, (), 1)


def test_whole_ranges_are_reused_unread(storage: RangeStorage) -> None:
    base = tree(storage, "a1,b1 c1,d1 e1,f1 g1,h1")
    source = tree(storage, "a2,b1 c1,d1 e1,f1 g1,h1 m1,n1")
    destination = tree(storage, "a1,b1 c1,d1 g1,h2 x1,y1")
    trees = (base, source, destination)
    storage.objects.delete(storage.path(info.id) for item in trees for info in storage.ranges(item))
    result = merge(RangeStorage(storage.objects), *trees)
    ids = {info.max_key: info.id for info in storage.ranges(result.metarange_id)}
    assert (list(ids), result.written, result.reused) == ([b"b", b"d", b"h", b"n", b"y"], (), 5)


def test_the_sources_record_is_taken_where_both_agree(storage: RangeStorage) -> None:
    """As lakeFS does: they may lie in different places, and both do hold the content."""
    before, ours, theirs = (valued("1", place) for place in (b"base", b"source", b"destination"))
    base, source, destination = (
        write_content(storage, {b"a": value, b"b": valued(other) if other == "0" else value, b"c": valued(other)})
        for value, other in ((before, "0"), (ours, "1"), (theirs, "2"))
    )
    result = merge(storage, base, source, destination, MergeStrategy.DEST_WINS)
    assert content_of(storage, result.metarange_id) == {b"a": ours, b"b": ours, b"c": valued("2")}


def test_a_conflict_names_the_first_keys_and_leaves_no_tree(storage: RangeStorage) -> None:
    keys = [b"%03d" % number for number in range(100)]
    base, source, destination = (
        write_content(storage, dict.fromkeys(keys, valued(str(number)))) for number in range(3)
    )
    before = len(list(storage.objects.list()))
    with pytest.raises(MergeConflictError, match="'000', '001'") as conflict:
        merge(storage, base, source, destination)
    assert conflict.value.keys == tuple(keys[:10])
    assert len(list(storage.objects.list())) == before


@settings(max_examples=examples(300))
@given(CONTENTS, CHANGES, CHANGES, RULES)
def test_merges_are_those_of_the_model(
    folders: Iterator[Path], content: Content, ours: Changes, theirs: Changes, rule: BreakRule
) -> None:
    storage = open_tree_storage(next(folders), rule)
    base = write_content(storage, content)
    source, destination = (
        apply(storage, base, batches(changes), allow_empty=True).metarange_id for changes in (ours, theirs)
    )
    contents = before, left, right = [content_of(storage, item) for item in (base, source, destination)]
    expected, conflicts = merged_content(*contents)
    expected_source = expected | {key: left[key] for key in conflicts if key in left}
    for key in conflicts:
        if key not in left:
            del expected_source[key]
    for strategy in MergeStrategy:
        if source == base:
            with pytest.raises(NoChangesError):
                merge(storage, base, source, destination, strategy)
        elif strategy is MergeStrategy.NONE and conflicts:
            with pytest.raises(MergeConflictError) as conflict:
                merge(storage, base, source, destination, strategy)
            assert conflict.value.keys[0] == conflicts[0]
        else:
            result = merge(storage, base, source, destination, strategy)
            found = content_of(storage, result.metarange_id)
            wanted = expected_source if strategy is MergeStrategy.SOURCE_WINS else expected
            # Where sides agree on the identity, either one's data will do.
            assert found.keys() == wanted.keys()
            assert {key: identity(value) for key, value in found.items()} == {
                key: identity(value) for key, value in wanted.items()
            }
            assert all(found[key] in (left.get(key), right.get(key)) for key in found)
    assert before == content_of(storage, base)


def identity(value: bytes) -> bytes:
    return value[:33]


# Diffs of trees and of staged changes: by identity, without reading what both trees have.

Rows = list[tuple[bytes, DiffKind, bytes, bytes]]
A, B, A2 = valued("a"), valued("b"), valued("a", b"elsewhere")


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
