"""Trees in an object storage: on a folder and on S3, read from any key on; what is missing or damaged is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import CorruptRangeError, MissingRangeError, RangeRecordError
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import RangeData
from compaction.staging.format.ranges import BreakRule, RangeInfo, RangeWriter, TableKind, write_metarange, write_ranges
from compaction.staging.tree import storage as storage_module
from compaction.staging.tree.applying import Part, apply, plan_parts, write_part
from compaction.staging.tree.diffing import diff, merge
from compaction.staging.tree.storage import RangeStorage, RecentlyUsed
from compaction.storage.objects.store import ObjectStorage
from support.staging.staging_tables import numbered
from support.staging.staging_trees import (
    CONTENTS,
    KEYS,
    RULES,
    WHOLE,
    Content,
    batches,
    content_of,
    groups_of,
    open_tree_storage,
    records_in,
    valued,
    write_content,
    write_groups,
)
from support.timing import examples

A, B = valued("a"), valued("b")
ONE_OF_40000 = "2995638001ae5e003c0e632cd7b9a1d85eabd5d8157346834d55843fe018356e"


def three(storage: RangeStorage) -> str:
    """A tree of three ranges: a and b, m and n, x and y."""
    return write_groups(storage, [dict.fromkeys(keys, A) for keys in ((b"a", b"b"), (b"m", b"n"), (b"x", b"y"))])


def again(storage: RangeStorage) -> RangeStorage:
    """The same objects, and nothing kept of them."""
    return RangeStorage(storage.objects, rule=storage.rule)


def test_trees_on_every_object_storage(objects: ObjectStorage) -> None:
    """Written, read, changed as a whole and in parts, compared and merged."""
    storage = RangeStorage(objects, rule=BreakRule(raggedness=300), namespace="repo/main")
    content = dict(numbered(5000))
    base = write_content(storage, content)
    assert {each.path for each in objects.list("repo/main/_lakefs")} == {each.path for each in objects.list()}
    assert content_of(storage, base) == content
    changes = {key: b"" if number % 2 else B for number, key in enumerate(sorted(content)) if number % 999 == 0}
    applied = apply(storage, base, batches(changes, 2))
    assert (applied.counts.changed, applied.counts.removed) == (3, 3)
    parts = plan_parts(storage.ranges(base), batches(changes), storage.rule, part_bytes=1)
    ranges: list[RangeInfo] = []
    for item in parts:
        if isinstance(item, Part):
            own = {key: value for key, value in changes.items() if key >= item.start and key < (item.stop or b"\xff")}
            ranges += write_part(storage, item, batches(own)).ranges
        else:
            ranges.append(item)
    assert storage.write_metarange(ranges) == applied.metarange_id
    fresh = RangeStorage(objects, rule=storage.rule, namespace="repo/main")
    found = [row[0] for batch in diff(fresh, base, applied.metarange_id) for row in batch.rows()]
    assert found == sorted(changes)
    other = apply(storage, base, batches({b"z": A})).metarange_id
    merged = merge(fresh, base, applied.metarange_id, other)
    assert content_of(fresh, merged.metarange_id) == content_of(fresh, applied.metarange_id) | {b"z": A}
    assert fresh.get(merged.metarange_id, b"z") == A


def test_a_range_is_stored_under_its_golden_id(storage: RangeStorage) -> None:
    """F1 and F4: the first and last key and the count are known, equal content twice is one object."""
    for _ in range(2):
        (info,) = write_ranges(batches(numbered(40_000)), storage.sink, WHOLE)
        assert (info.id, info.min_key, info.max_key, info.count) == (
            ONE_OF_40000,
            b"k/%08d" % 0,
            b"k/%08d" % 39_999,
            40_000,
        )
    assert [item.path for item in storage.objects.list()] == [f"_lakefs/{ONE_OF_40000}"]
    assert storage.exists(info.id)
    assert not storage.exists("0" * 64)
    assert storage.content_id(info.id, TableKind.RANGES) == info.id


def test_large_ranges_are_spooled(storage: RangeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "SPOOL_BYTES", 1000)
    tree = write_content(storage, dict(numbered(5000)))
    assert content_of(storage, tree) == dict(numbered(5000))


def test_what_is_never_stored_leaves_nothing(storage: RangeStorage) -> None:
    """F2 and F3: a writer that is given up, and one that is given up behind its end."""
    sink = storage.sink()
    RangeWriter(sink).add(next(batches({b"a": A})))
    del sink
    sink = storage.sink()
    writer = RangeWriter(sink)
    writer.add(next(batches({b"a": A})))
    writer.finish()
    del sink
    assert not list(storage.objects.list())


@settings(max_examples=examples(200))
@given(CONTENTS, RULES, KEYS, st.one_of(st.none(), KEYS))
def test_reading_from_any_key_on(
    folders: Iterator[Path], content: Content, rule: BreakRule, start: bytes, stop: bytes | None
) -> None:
    """F6."""
    storage = open_tree_storage(next(folders), rule)
    tree = write_content(storage, content)
    expected = {key: value for key, value in content.items() if key >= start and (stop is None or key < stop)}
    for each in (storage, again(storage)):
        found = [pair for batch in each.records(tree, start, stop) for pair in batch.pairs()]
        assert found == sorted(expected.items())
        ranges = list(each.ranges(tree))
        assert list(each.ranges(tree, start)) == [info for info in ranges if info.max_key >= start]
    for key in (start, stop or b"", *list(content)[:5]):
        assert storage.get(tree, key) == content.get(key)
    asked = [start, stop or b"", *list(content)[::2]]
    assert storage.get_many(tree, asked) == {key: content[key] for key in asked if key in content}


@pytest.mark.parametrize("cache_bytes", [0, 1000, 1 << 20])
@pytest.mark.parametrize("listed", [2, 1000])
def test_lists_of_ranges_that_are_too_long_to_be_kept(
    storage: RangeStorage, listed: int, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "LISTED", listed)
    tree = three(storage)
    storage = RangeStorage(storage.objects, cache_bytes=cache_bytes)
    for _ in range(2):
        assert [info.max_key for info in storage.ranges(tree, b"c")] == [b"n", b"y"]
        assert [storage.get(tree, key) for key in (b"a", b"c", b"m", b"y", b"z")] == [A, None, A, A, None]
    assert [info and info.max_key for info in (storage.lookup(tree, key) for key in (b"a", b"c", b"y"))] == [
        b"b",
        None,
        b"y",
    ]
    assert storage.lookup("", b"a") is None


def test_a_lookup_in_a_long_list_reads_little(storage: RangeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "LISTED", 100)
    infos = [RangeInfo("0" * 64, b"%06d" % number, b"%06d" % number, 1, 1) for number in range(20_000)]
    tree = storage.write_metarange(infos)
    fetched: list[int] = []
    read = storage.objects.get_range

    def counted(path: str, start: int, length: int, *, etag: str = "") -> bytes:
        fetched.append(length)
        return read(path, start, length, etag=etag)

    monkeypatch.setattr(storage.objects, "get_range", counted)
    assert storage.lookup(tree, b"012345") == infos[12_345]
    assert sum(fetched) < 50_000


def test_overlapping_ranges_have_no_metarange(storage: RangeStorage) -> None:
    """F7 and F8."""
    (one,) = write_ranges(batches({b"a": A, b"m": A}), storage.sink, WHOLE)
    (other,) = write_ranges(batches({b"m": A, b"x": A}), storage.sink, WHOLE)
    for overlapping in ([one, other], [other, one], [one, one]):
        with pytest.raises(RangeRecordError, match="overlaps"):
            storage.write_metarange(overlapping)


def test_ranges_are_listed_in_order(storage: RangeStorage) -> None:
    """F9 and F10: whatever order they are given in."""
    ranges = list(storage.ranges(three(storage)))
    assert list(storage.ranges(storage.write_metarange(reversed(ranges)))) == ranges


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_ranges_without_records(storage: RangeStorage, place: int) -> None:
    """F12: at the start, in the middle and at the end; a seek to them, before and behind."""
    sink = storage.sink()
    empty = RangeWriter(sink).finish()
    sink.store(empty)
    at = (b"Z", b"d", b"p", b"z")[place]
    nothing = RangeInfo(empty.id, at, at, 0, empty.estimated_size)
    tree = storage.write_metarange([*storage.ranges(three(storage)), nothing])
    assert len(groups_of(storage, tree)) == 4
    expected = dict.fromkeys((b"a", b"b", b"m", b"n", b"x", b"y"), A)
    assert content_of(storage, tree) == expected
    for start in (b"", b"Z", b"c", b"d", b"e", b"p", b"z"):
        found = [pair for batch in storage.records(tree, start) for pair in batch.pairs()]
        assert found == [pair for pair in sorted(expected.items()) if pair[0] >= start]
    assert storage.get(tree, at) is None
    assert content_of(storage, apply(storage, tree, batches({at: B})).metarange_id) == expected | {at: B}


def damage(storage: RangeStorage, table: str, change: Callable[[bytes], bytes]) -> None:
    data = storage.objects.get(storage.path(table))
    storage.objects.put(storage.path(table), change(data))


def flipped(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 1]) + data[10:]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a flipped bit": (flipped, "checksum"),
    "cut off": (lambda data: data[:-60], "damaged"),
    "empty": (lambda data: b"", "damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_range_is_named_and_its_siblings_are_read(storage: RangeStorage, name: str) -> None:
    change, reason = DAMAGES[name]
    tree = three(storage)
    _, second, _ = storage.ranges(tree)
    damage(storage, second.id, change)
    storage = again(storage)
    check_siblings(storage, tree, second)
    for read in (lambda: content_of(storage, tree), lambda: apply(storage, tree, batches({b"n": B}))):
        with pytest.raises(CorruptRangeError, match=reason) as damaged:
            read()
        assert damaged.value.path == f"_lakefs/{second.id}"


def check_siblings(storage: RangeStorage, tree: str, damaged: RangeInfo) -> None:
    """All but one range are read, and changed."""
    assert [storage.get(tree, key) for key in (b"a", b"b", b"x", b"y", b"c")] == [A, A, A, A, None]
    result = apply(storage, tree, batches({b"a": B, b"z": B}))
    assert result.reused == 2
    assert damaged in list(storage.ranges(result.metarange_id))


def test_a_missing_range_is_named_with_its_metarange(storage: RangeStorage) -> None:
    tree = three(storage)
    _, second, _ = storage.ranges(tree)
    data = storage.objects.get(storage.path(second.id))
    storage.objects.delete([storage.path(second.id)])
    storage = again(storage)
    check_siblings(storage, tree, second)
    for read in (lambda: storage.get(tree, b"n"), lambda: apply(storage, tree, batches({b"n": B}))):
        with pytest.raises(MissingRangeError) as missing:
            read()
        assert (missing.value.table, missing.value.metarange) == (second.id, tree)
        assert str(missing.value) == (
            f"_lakefs/{second.id}: the object, which metarange {tree} lists, does not exist; restore it from a copy "
            "(its content is named by its id), or reset the branch to a commit whose ranges exist"
        )
    storage.objects.put(storage.path(second.id), data)
    assert storage.get(tree, b"n") == A


def test_a_range_that_disappears_while_it_is_read(storage: RangeStorage) -> None:
    """What is kept of its end is no reason to give anything else than an error; `forget` drops it."""
    tree = write_content(storage, dict(numbered(5000)))
    (info,) = storage.ranges(tree)
    storage.open(info.id)
    storage.objects.delete([storage.path(info.id)])
    with pytest.raises(MissingRangeError):
        records_in(storage, info)
    storage.objects.put(storage.path(info.id), b"short")
    with pytest.raises(CorruptRangeError, match="the object ends"):
        records_in(storage, info)
    storage.forget(info.id)
    with pytest.raises(CorruptRangeError):
        storage.open(info.id)


def test_a_missing_metarange(storage: RangeStorage) -> None:
    with pytest.raises(MissingRangeError, match=f"^_lakefs/{'0' * 64}: the object does not exist"):
        list(storage.ranges("0" * 64))


def test_a_range_under_a_wrong_id(storage: RangeStorage) -> None:
    """F11: what a metarange says of a range is compared with what is there."""
    tree = three(storage)
    first, second, third = storage.ranges(tree)
    for wrong, reason in (
        (RangeInfo(first.id, second.min_key, second.max_key, 2, 1), "outside the bounds"),
        (RangeInfo(second.id, second.min_key, second.max_key, 3, 1), "it has 2 records, and should have 3"),
    ):
        foreign = storage.write_metarange([first, wrong, third])
        assert storage.get(foreign, b"x") == A
        with pytest.raises(CorruptRangeError, match=reason):
            content_of(storage, foreign)


@pytest.mark.parametrize("table", ["", "../../secret", "0" * 63, "A" * 64, "é" * 64])
def test_ids_that_are_none(storage: RangeStorage, table: str) -> None:
    with pytest.raises(CorruptRangeError, match="no id of a range"):
        storage.open(table)
    sink = storage.sink()
    writer = RangeWriter(sink, TableKind.METARANGES)
    writer.add(next(batches({b"b": frame_value(table.encode(), RangeData(b"a", b"b", 1, 1).encode())})))
    info = writer.finish()
    sink.store(info)
    with pytest.raises(CorruptRangeError):
        content_of(storage, info.id)


def test_a_range_is_no_metarange(storage: RangeStorage) -> None:
    (info,) = storage.ranges(write_content(storage, {b"a": A}))
    with pytest.raises(CorruptRangeError, match="no metarange"):
        list(storage.ranges(info.id))


def test_many_readers_at_once(storage: RangeStorage) -> None:
    cut = RangeStorage(storage.objects, rule=BreakRule(raggedness=50), cache_bytes=100_000)
    content = dict(numbered(2000))
    tree = write_content(cut, content)
    keys = list(content)
    barrier = threading.Barrier(4)

    def read(number: int) -> list[bytes | None]:
        barrier.wait()
        return [cut.get(tree, key) for key in keys[number::40]]

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(read, range(4))):
            assert found == [content[key] for key in keys[number::40]]


def test_the_least_recently_used_is_dropped() -> None:
    kept: RecentlyUsed[int] = RecentlyUsed(10)
    kept.put("a", 1, 4)
    kept.put("b", 2, 4)
    assert kept.get("a") == 1
    kept.put("c", 3, 4)
    assert [kept.get(name) for name in "abc"] == [1, None, 3]
    kept.put("large", 4, 11)
    assert (kept.get("large"), len(kept)) == (None, 2)
    kept.put("a", 5, 7)
    assert [kept.get(name) for name in "ac"] == [5, None]
    kept.drop("a")
    kept.drop("a")
    kept.put("b", 2, 10)
    assert (kept.get("b"), len(kept)) == (2, 1)


def test_a_metarange_has_the_id_of_what_it_lists(storage: RangeStorage) -> None:
    tree = three(storage)
    assert storage.content_id(tree, TableKind.METARANGES) == tree
    sink = storage.sink()
    assert write_metarange(storage.ranges(tree), sink).id == tree
