"""Three-way merges: what they contain under each strategy, which ranges they reuse, and what is a conflict."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from compaction.staging.errors import MergeConflictError, NoChangesError
from compaction.staging.format.ranges import BreakRule
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import MergedTree, MergeStrategy, merge
from compaction.staging.tree.storage import RangeStorage
from support.depth import examples
from support.stores.staging_trees import (
    CHANGES,
    CONTENTS,
    RULES,
    Changes,
    Content,
    batches,
    content_of,
    groups_of,
    merged_content,
    open_tree_storage,
    valued,
    write_content,
    write_groups,
)


@pytest.fixture
def storage(tmp_path: Path) -> RangeStorage:
    return open_tree_storage(tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder each time."""
    root = tmp_path_factory.mktemp("trees")
    return (root / str(number) for number in itertools.count())


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
