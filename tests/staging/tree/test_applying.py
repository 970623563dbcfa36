"""Changes over a tree give the records that they say and the ranges that lakeFS would write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.staging.errors import NoChangesError, RangeRecordError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.ranges import BreakRule, RangeInfo, RangeWriter, write_ranges
from compaction.staging.tree.aligning import fingerprint
from compaction.staging.tree.applying import (
    AppliedChanges,
    ChangeCounts,
    Part,
    apply,
    merge_changes,
    plan_parts,
    read_back,
    write_part,
)
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import ObjectStoreUnavailableError
from support.staging.staging_tables import digits
from support.staging.staging_trees import (
    CHANGES,
    CONTENTS,
    RULES,
    WHOLE,
    Changes,
    Content,
    batches,
    changed_content,
    content_of,
    fnv,
    groups_of,
    open_tree_storage,
    plainly_applied,
    same,
    valued,
    write_content,
    write_groups,
)
from support.timing import examples

VALUE = valued("v", bytes(range(200)))


def letters(text: str, identity: str = "old") -> dict[bytes, bytes]:
    """A record for each letter."""
    return {letter.encode(): valued(identity + letter) for letter in text}


def tree(storage: RangeStorage, text: str) -> str:
    """Ranges of letters, one for each word."""
    return write_groups(storage, [letters(word) for word in text.split()])


def words(storage: RangeStorage, tree_id: str) -> str:
    return " ".join(b"".join(key for key, _ in group).decode() for group in groups_of(storage, tree_id))


def staged(text: str) -> dict[bytes, bytes]:
    """Changes of letters: those behind a minus are deleted."""
    sets, _, deletes = text.partition("-")
    return letters(sets, "new") | dict.fromkeys((letter.encode() for letter in deletes), b"")


CASES = {
    "P1 inside, in a gap, after the end": ("bdf jln", "chz", "bcdfhjlnz", (3, 0, 0), 0),
    "P2 inside one range": ("bdf jln", "ce", "bcdef jln", (2, 0, 0), 1),
    "P3 before and after all ranges": ("bdf jln", "az", "abdf jln z", (2, 0, 0), 1),
    "P4 in two ranges, the middle one is reused": ("abc def ghi", "bg", "abc def ghi", (0, 2, 0), 1),
    "P6 a key, and the only key of a range": ("ab c d", "-ac", "b d", (0, 0, 2), 1),
    "P7 leftover changes": ("ab", "cdef", "ab cdef", (4, 0, 0), 1),
    "P9 missing keys are deleted, one is added": ("bd fh", "c-aeg", "bcdfh", (1, 0, 0), 0),
    "P11 a deletion in the third of four": ("ab cd ef gh", "-e", "ab cd f gh", (0, 0, 1), 3),
    "a deletion in a gap enters the range behind": ("ab ef gh", "z-d", "ab ef gh z", (1, 0, 0), 2),
    "all is deleted": ("ab cd", "-abcd", "", (0, 0, 4), 0),
    "on nothing": ("", "abc", "abc", (3, 0, 0), 0),
    "the last key of a range": ("ab cd", "b", "ab cd", (0, 1, 0), 1),
}


@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize("name", CASES)
def test_changes_over_ranges(storage: RangeStorage, name: str, step: int) -> None:
    base, changes, expected, counts, reused = CASES[name]
    base_id = tree(storage, base)
    result = apply(storage, base_id, batches(staged(changes), step))
    assert words(storage, result.metarange_id) == expected
    assert content_of(storage, result.metarange_id) == changed_content(content_of(storage, base_id), staged(changes))
    assert (result.counts, result.reused) == (ChangeCounts(*counts), reused)
    assert len(result.written) == len(expected.split()) - reused
    again = apply(storage, base_id, batches(staged(changes)))
    assert again == result


UNCHANGED = {
    "P5 same identity, other data": ("ab cd", {b"a": valued("olda", b"other")}),
    "P8 a deletion on nothing": ("", {b"a": b""}),
    "P10 a deletion before the first range": ("bc", {b"a": b""}),
    "P12 no changes": ("ab", {}),
    "deletions everywhere but where keys are": ("bc fg", {b"a": b"", b"d": b"", b"z": b""}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_changes_nothing(storage: RangeStorage, name: str) -> None:
    base, changes = UNCHANGED[name]
    base_id = tree(storage, base)
    with pytest.raises(NoChangesError, match="nothing differs"):
        apply(storage, base_id, batches(changes))
    result = apply(storage, base_id, batches(changes), allow_empty=True)
    assert content_of(storage, result.metarange_id) == content_of(storage, base_id)
    assert result.counts.total == 0


def test_the_tree_without_records_has_a_metarange(storage: RangeStorage) -> None:
    result = apply(storage, "", (), allow_empty=True)
    assert result == AppliedChanges(storage.write_metarange(()), ChangeCounts(), (), 0)
    assert not content_of(storage, result.metarange_id)
    assert not list(storage.ranges(""))


def test_an_error_of_what_is_read_ends_it(storage: RangeStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13 to P15: no metarange comes of it."""
    base_id = tree(storage, "abc def ghi")
    known = {item.path for item in storage.objects.list()}

    def cut_off() -> Iterator[RecordColumns]:
        yield from batches(staged("be"), 1)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        apply(storage, base_id, cut_off())
    with pytest.raises(InterruptedError):
        apply(storage, "", cut_off())

    def unavailable(*_: object) -> bytes:
        raise ObjectStoreUnavailableError("x", "503")

    monkeypatch.setattr(storage.objects, "get_range", unavailable)
    with pytest.raises(ObjectStoreUnavailableError):
        apply(RangeStorage(storage.objects, rule=WHOLE), base_id, batches(staged("be")))
    assert {item.path for item in storage.objects.list()} == known


@pytest.mark.parametrize("step", [1, 10])
@pytest.mark.parametrize("keys", ["bb", "ba", "abdc"])
def test_changes_that_do_not_ascend_are_refused(storage: RangeStorage, keys: str, step: int) -> None:
    pairs = [(key.encode(), b"") for key in keys]
    given_batches = [RecordColumns.of(pairs[at : at + step]) for at in range(0, len(pairs), step)]
    base_id = tree(storage, "abcdefg")
    with pytest.raises(RangeRecordError, match="not greater than the one before"):
        apply(storage, base_id, given_batches)
    with pytest.raises(RangeRecordError, match="not greater than the one before"):
        list(plan_parts(storage.ranges(base_id), given_batches, WHOLE))


def test_a_value_without_an_identity_is_named(storage: RangeStorage) -> None:
    base_id = tree(storage, "abc")
    with pytest.raises(RangeRecordError, match="no identity") as refused:
        apply(storage, base_id, [RecordColumns.of([(b"b", b"\xff\xff")])])
    assert refused.value.key == b"b"


@settings(max_examples=examples(200))
@given(CONTENTS, CHANGES, CHANGES, RULES, st.integers(1, 40))
def test_ranges_are_those_of_lakefs(
    folders: Iterator[Path], content: Content, first: Changes, second: Changes, rule: BreakRule, step: int
) -> None:
    """Twice: the second time over ranges that are not cut where the rule says."""
    storage = open_tree_storage(next(folders), rule)
    tree_id = write_content(storage, content)
    for changes in (first, second):
        before, groups = content_of(storage, tree_id), groups_of(storage, tree_id)
        result = apply(storage, tree_id, batches(changes, step), allow_empty=True)
        expected = plainly_applied(groups, changes, rule)
        assert groups_of(storage, result.metarange_id) == expected.groups
        assert result.reused == expected.reused
        after = changed_content(before, changes)
        assert content_of(storage, result.metarange_id) == after
        assert result.counts == counted(before, after)
        tree_id = result.metarange_id


def counted(before: Content, after: Content) -> ChangeCounts:
    return ChangeCounts(
        added=len(after.keys() - before.keys()),
        changed=sum(not same(before[key], after[key]) for key in before.keys() & after.keys()),
        removed=len(before.keys() - after.keys()),
    )


@settings(max_examples=examples(200))
@given(CONTENTS, CHANGES, CHANGES, RULES, st.integers(1, 400), st.integers(1, 40))
def test_part_by_part_is_as_in_one_go(
    folders: Iterator[Path],
    content: Content,
    first: Changes,
    second: Changes,
    rule: BreakRule,
    part_bytes: int,
    step: int,
) -> None:
    storage = open_tree_storage(next(folders), rule)
    tree_id = apply(storage, write_content(storage, content), batches(first, step), allow_empty=True).metarange_id
    whole = apply(storage, tree_id, batches(second, step), allow_empty=True)
    plan = list(plan_parts(storage.ranges(tree_id), batches(second, step), rule, part_bytes=part_bytes))
    check_plan(plan, second)
    ranges: list[RangeInfo] = []
    counts = ChangeCounts()
    for item in plan:
        if isinstance(item, RangeInfo):
            ranges.append(item)
            continue
        result = write_part(storage, item, batches(changes_of(item, second), step))
        assert result.content == read_back(storage, result.ranges)
        ranges += result.ranges
        counts += result.counts
    assert storage.write_metarange(ranges) == whole.metarange_id
    assert (ranges, counts) == (list(storage.ranges(whole.metarange_id)), whole.counts)


def changes_of(part: Part, changes: Changes) -> dict[bytes, bytes]:
    return {
        key: value
        for key, value in changes.items()
        if (part.after is None or key > part.after) and (part.until is None or key <= part.until)
    }


def check_plan(plan: list[RangeInfo | Part], changes: Changes) -> None:
    """Each change belongs to one part, and each part has something to write."""
    parts = [item for item in plan if isinstance(item, Part)]
    found = [key for part in parts for key in sorted(changes_of(part, changes))]
    assert found == sorted(changes)
    for part in parts:
        assert part.changes == len(changes_of(part, changes))
        assert part.ranges or part.changes


def test_parts_are_of_about_the_wanted_size(storage: RangeStorage) -> None:
    """Also where all changes lie in one gap."""
    rule = BreakRule(raggedness=50)
    changes = {b"m/%06d" % number: valued(str(number), bytes(40)) for number in range(20_000)}
    base_id = tree(storage, "ab yz")
    parts = list(plan_parts(storage.ranges(base_id), batches(changes), rule, part_bytes=200_000))
    assert isinstance(parts[0], RangeInfo)
    sizes = [part.nbytes for part in parts if isinstance(part, Part)]
    assert len(sizes) > 5
    assert all(200_000 <= size < 230_000 for size in sizes[:-1])
    # Where a range has a least size, its end depends on what comes before: nothing is cut.
    rule = BreakRule(1, raggedness=50)
    assert len(list(plan_parts(storage.ranges(base_id), batches(changes), rule, part_bytes=1))) == 2


@pytest.mark.parametrize("step", [1, 1000])
def test_nothing_is_cut_at_a_key_that_is_deleted(tmp_path: Path, step: int) -> None:
    """All last keys of ranges are: what is left becomes one range."""
    storage = open_tree_storage(tmp_path, BreakRule(raggedness=20))
    base_id = write_content(storage, {b"%04d" % number: valued("old") for number in range(400)})
    lasts = [info.max_key for info in storage.ranges(base_id)][:-1]
    assert len(lasts) > 5
    changes = dict.fromkeys(lasts, b"") | {b"0399": valued("new")}
    plan = list(plan_parts(storage.ranges(base_id), batches(changes, step), storage.rule, part_bytes=1))
    (part,) = plan
    assert isinstance(part, Part)
    (info,) = write_part(storage, part, batches(changes, step)).ranges
    assert storage.write_metarange([info]) == apply(storage, base_id, batches(changes)).metarange_id


def test_nothing_is_cut_behind_a_range_without_records(tmp_path: Path) -> None:
    """Its bounds are no keys, so no range ends there."""
    storage = open_tree_storage(tmp_path, BreakRule(raggedness=7))
    keys = [b"%03d" % number for number in range(100)]
    at = next(
        place for place in range(1, 99) if [fnv(key) % 7 == 0 for key in keys[place - 1 : place + 2]] == [0, 1, 0]
    )
    sink = storage.sink()
    empty = RangeWriter(sink).finish()
    sink.store(empty)
    nothing = RangeInfo(empty.id, keys[at], keys[at], 0, 100)
    groups = [{keys[at - 1]: valued("old")}, {keys[at + 1]: valued("old")}]
    base_id = storage.write_metarange([*storage.ranges(write_groups(storage, groups)), nothing])
    changes = {keys[at - 1]: valued("new"), keys[at - 1] + b"-": b"", keys[at + 1]: valued("new")}
    (part,) = plan_parts(storage.ranges(base_id), batches(changes), storage.rule, part_bytes=1)
    assert isinstance(part, Part)
    assert [info.count for info in write_part(storage, part, batches(changes)).ranges] == [2]


def test_a_part_takes_its_own_changes_only(storage: RangeStorage) -> None:
    base_id = tree(storage, "bcd fgh xyz")
    (_, part, _) = plan_parts(storage.ranges(base_id), batches(staged("g")), WHOLE)
    assert isinstance(part, Part)
    assert (part.after, part.until, part.start, part.stop) == (b"d", b"h", b"d\0", b"h\0")
    for wrong, where in (("d", "before"), ("i", "behind")):
        with pytest.raises(RangeRecordError, match=f"{where} the part"):
            write_part(storage, part, batches(staged(wrong)))


def test_the_fingerprint_is_of_records_not_of_batches() -> None:
    content = {digits(str(number)): valued(str(number)) for number in range(500)}
    found = {fingerprint(batches(content, step)) for step in (1, 7, 1000)}
    assert len(found) == 1
    assert next(iter(found)).startswith("500:")
    assert fingerprint(batches({b"a": b"bc"})) != fingerprint(batches({b"ab": b"c"}))
    assert fingerprint(batches(content | {digits("3"): valued("other")})) not in found
    assert fingerprint(()).startswith("0:")


def test_the_effective_view_is_what_is_read_back(storage: RangeStorage) -> None:
    base_id = tree(storage, "abc def")
    changes = staged("bx-f")
    view = fingerprint(out for out, _ in merge_changes(storage.records(base_id), batches(changes, 1)))
    result = apply(storage, base_id, batches(changes))
    assert fingerprint(storage.records(result.metarange_id)) == view
    assert read_back(storage, storage.ranges(result.metarange_id)) == view


def test_memory_is_that_of_some_batches(storage: RangeStorage) -> None:
    """Of a tree of 70 MB, all of which is rewritten."""
    count = 300_000
    most = 0

    def rows(step: int) -> Iterator[RecordColumns]:
        nonlocal most
        for begin in range(0, count, 10_000):
            numbers = range(begin, begin + 10_000, step)
            keys = pa.array([b"k/%012d" % number for number in numbers], pa.large_binary())
            values = pa.array([VALUE + b"%012d" % number for number in numbers], pa.large_binary())
            most = max(most, pa.total_allocated_bytes())
            yield RecordColumns(keys, values)

    base_id = storage.write_metarange(write_ranges(rows(1), storage.sink, BreakRule(raggedness=20_000)))
    before = most = pa.total_allocated_bytes()
    result = apply(storage, base_id, rows(100), allow_empty=True)
    assert (result.counts.total, result.reused) == (0, 0)
    assert most - before < 40 << 20
