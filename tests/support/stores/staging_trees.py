"""Trees of staging areas for tests: written range by range, read as dictionaries; and a model of lakeFS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import frame_value, split_value
from compaction.staging.format.ranges import BreakRule, RangeInfo, write_ranges
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from support.stores.plain_tables import PlainTableWriter
from support.stores.staging_tables import Record, digits

Content = Mapping[bytes, bytes]
Changes = Mapping[bytes, bytes]
"""Values that are staged, b"" for tombstones."""
WHOLE: Final = BreakRule(raggedness=1 << 40)
"""Ranges end only where a test ends them."""
KEYS: Final = st.one_of(
    st.integers(0, 60).map(lambda number: b"k%02d" % number),
    st.lists(st.sampled_from((0, 1, 0x61, 0xFF)), max_size=3).map(bytes),
)
VALUES: Final = st.tuples(st.integers(0, 3), st.integers(0, 1)).map(lambda pair: valued(str(pair[0]), bytes([pair[1]])))
CONTENTS: Final = st.dictionaries(KEYS, VALUES, max_size=40)
CHANGES: Final = st.dictionaries(KEYS, st.one_of(VALUES, st.just(b"")), max_size=30)
RULES: Final = st.builds(
    BreakRule, st.sampled_from((0, 0, 0, 120)), st.sampled_from((1 << 20, 1 << 20, 200)), st.sampled_from((1, 2, 3, 7))
)


def valued(identity: str, data: bytes = b"data") -> bytes:
    """A framed value whose identity is the hash of a text."""
    return frame_value(digits(identity), data)


def batches(records: Content | Iterable[Record], step: int = 1000) -> Iterator[RecordColumns]:
    """Records in order, some at a time."""
    every = sorted(dict(records).items())
    for at in range(0, len(every), step):
        yield RecordColumns.of(every[at : at + step])


def open_tree_storage(folder: Path, rule: BreakRule = WHOLE) -> RangeStorage:
    """A storage of ranges in a folder."""
    return RangeStorage(open_objects(str(folder)), rule=rule)


def write_content(storage: RangeStorage, content: Content) -> str:
    """A tree of these records, cut by the storage's rule."""
    return storage.write_metarange(write_ranges(batches(content), storage.sink, storage.rule))


def write_groups(storage: RangeStorage, groups: Sequence[Content]) -> str:
    """A tree with a range for each group of records."""
    return storage.write_metarange(
        info for group in groups for info in write_ranges(batches(group), storage.sink, WHOLE)
    )


def content_of(storage: RangeStorage, tree: str) -> dict[bytes, bytes]:
    """All records of a tree."""
    return dict(pair for batch in storage.records(tree) for pair in batch.pairs())


def groups_of(storage: RangeStorage, tree: str) -> list[list[Record]]:
    """The records of a tree, range by range."""
    return [records_in(storage, info) for info in storage.ranges(tree)]


def records_in(storage: RangeStorage, info: RangeInfo) -> list[Record]:
    return [pair for batch in storage.range_records(info) for pair in batch.pairs()]


def same(one: bytes | None, other: bytes | None) -> bool:
    """Whether two values (None: there is none) have one identity."""
    return one is other or (one is not None and other is not None and split_value(one)[0] == split_value(other)[0])


def changed_content(base: Content, changes: Changes) -> dict[bytes, bytes]:
    """What changes over a base give."""
    found = dict(base)
    for key, value in changes.items():
        if not value:
            found.pop(key, None)
        elif not same(found.get(key), value):
            found[key] = value
    return found


def differing(left: Content, right: Content) -> dict[bytes, tuple[bytes, bytes]]:
    """Both values of each key that differs, b"" for none."""
    return {
        key: (left.get(key, b""), right.get(key, b""))
        for key in sorted(left.keys() | right.keys())
        if not same(left.get(key), right.get(key))
    }


def merged_content(base: Content, source: Content, destination: Content) -> tuple[dict[bytes, bytes], list[bytes]]:
    """A merge in which the destination wins, and the keys in conflict."""
    found: dict[bytes, bytes] = {}
    conflicts: list[bytes] = []
    for key in sorted(source.keys() | destination.keys()):
        before, ours, theirs = base.get(key), source.get(key), destination.get(key)
        if same(ours, theirs) or same(before, theirs):
            value = ours
        else:
            value = theirs
            if not same(before, ours):
                conflicts.append(key)
        if value is not None:
            found[key] = value
    return found, conflicts


def plainly_applied(groups: Sequence[Sequence[Record]], changes: Changes, rule: BreakRule) -> PlainTree:
    """The ranges that lakeFS writes for changes over a base, one record after the other."""
    tree = PlainTree(rule)
    left = sorted(changes.items(), reverse=True)
    for group in groups:
        if not left or group[-1][0] < left[-1][0]:
            tree.refer(group)
            continue
        for key, value in group:
            while left and left[-1][0] < key:
                tree.write(*left.pop())
            staged = left.pop()[1] if left and left[-1][0] == key else value
            tree.write(key, value if same(staged or None, value) else staged)
    while left:
        tree.write(*left.pop())
    return tree


@dataclass
class PlainTree:
    """Ranges on their way into a metarange."""

    rule: BreakRule
    groups: list[list[Record]] = field(default_factory=list)
    reused: int = 0
    open: PlainTableWriter | None = None

    def refer(self, group: Sequence[Record]) -> None:
        self.groups.append(list(group))
        self.reused += 1
        self.open = None

    def write(self, key: bytes, value: bytes) -> None:
        if not value:
            return
        if self.open is None:
            self.open = PlainTableWriter()
            self.groups.append([])
        self.open.add(key, value)
        self.groups[-1].append((key, value))
        size = self.open.estimate
        if size >= self.rule.min_bytes and (size >= self.rule.max_bytes or fnv(key) % self.rule.raggedness == 0):
            self.open = None


def fnv(key: bytes) -> int:
    """FNV-1a, 64 bits."""
    found = 0xCBF29CE484222325
    for byte in key:
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found
