"""Trees of staging areas for tests: written range by range, read as dictionaries; and a model of lakeFS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from compaction.staging.compaction import BranchWork, claim, swap_base, work_on
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import I64, U8, RecordColumns, binary_array
from compaction.staging.format.identity import frame_value, split_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.format.ranges import BreakRule, RangeInfo, write_ranges
from compaction.staging.refs.branches import BranchRecord
from compaction.staging.rewriting.tree import TreeWriter, WrittenTree
from compaction.staging.staged.rows import new_token
from compaction.staging.store import StagingConnection, StagingStore
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.objects.store import open_objects
from compaction.worker.tasks import ObjectsPlace
from support.processes.worker_ports import FakeLease
from support.staging.staging_tables import PlainTableWriter, Record, digits

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


# Millions of records of a staging area by the column, and branches that consist of them: for benchmarks.
#
# Record n has the n-th key in order. Keys are like those of a partitioned table (66 bytes, long common prefixes),
# values have 114 bytes: an identity and an entry with an address and a checksum, as an importer stages them.

NAME: Final = "bench"
TRANSACTION_BYTES: Final = 8 << 20
U64 = npt.NDArray[np.uint64]
STEP: Final = 50_000
"""Records that are made at once."""
FOLDER_RECORDS: Final = 20_000
"""Records with a common folder."""
_KEY: Final = b"tables/warehouse/day=00000/part-000000000-0123456789abcdef.parquet"
_DAY, _PART, _HEX = _KEY.index(b"00000/"), _KEY.index(b"000000000"), _KEY.index(b"0123")
_VALUE: Final = frame_value(b"I" * 32, CatalogEntry("A" * 32, ProtoTimestamp(1_700_000_000), 37_000, "E" * 32).encode())
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)

Task = TypeVar("Task")
Result = TypeVar("Result")


def folder_of(number: int) -> bytes:
    """The common prefix of the keys of a record and its neighbours."""
    return b"tables/warehouse/day=%05d/" % (number // FOLDER_RECORDS)


def keys_of(numbers: I64) -> Any:
    """The keys of these records: a large_binary array."""
    rows = np.tile(np.frombuffer(_KEY, dtype=np.uint8), (numbers.size, 1))
    _write_digits(rows, _DAY, 5, numbers // FOLDER_RECORDS)
    _write_digits(rows, _PART, 9, numbers)
    rows[:, _HEX : _HEX + 16] = _hex(_mixed(numbers.astype(np.uint64)))
    return _array(rows)


def records_of(numbers: I64, version: int = 0) -> RecordColumns:
    """These records; another version has other identities."""
    rows = np.tile(np.frombuffer(_VALUE, dtype=np.uint8), (numbers.size, 1))
    seeds = numbers.astype(np.uint64) * np.uint64(8) + np.uint64(version << 48)
    words = np.stack([_mixed(seeds + np.uint64(at)) for at in range(4)])
    identity, address, etag = _VALUE.index(b"I" * 32), _VALUE.index(b"A" * 32), _VALUE.index(b"E" * 32)
    rows[:, identity : identity + 32] = np.ascontiguousarray(words.T).view(np.uint8)
    rows[:, address : address + 16] = _hex(words[0])
    rows[:, address + 16 : address + 32] = _hex(words[1])
    rows[:, etag : etag + 16] = _hex(words[2])
    rows[:, etag + 16 : etag + 32] = _hex(words[3])
    return RecordColumns(keys_of(numbers), _array(rows))


def deletions_of(numbers: I64) -> RecordColumns:
    """Tombstones of these records."""
    return RecordColumns(keys_of(numbers), binary_array(np.zeros(numbers.size + 1, dtype=np.int64), b""))


def in_steps(numbers: I64, make: Callable[[I64], RecordColumns] = records_of) -> Iterator[RecordColumns]:
    """What `make` makes of these numbers, some at a time."""
    for begin in range(0, numbers.size, STEP):
        yield make(numbers[begin : begin + STEP])


def _array(rows: U8) -> Any:
    count, width = rows.shape
    return binary_array(np.arange(count + 1, dtype=np.int64) * width, rows.reshape(-1))


def _write_digits(rows: U8, at: int, width: int, numbers: I64) -> None:
    left = numbers
    for place in range(at + width - 1, at - 1, -1):
        rows[:, place] = 48 + left % 10
        left = left // 10


def _hex(words: U64) -> U8:
    data = words.view(np.uint8).reshape(-1, 8)
    found: U8 = np.stack([_DIGITS[data >> 4], _DIGITS[data & 15]], axis=2).reshape(-1, 16)
    return found


def _mixed(numbers: U64) -> U64:
    """Numbers that look random (splitmix64)."""
    words = numbers + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class OneByOne:
    """An engine of this thread: a task runs when it is submitted, so memory is that of a driver and one executor."""

    parallelism = 1
    address = "127.0.0.1"

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        done: Future[Result] = Future()
        done.set_result(work(task))
        return done

    def cancel(self, tag: str) -> None:
        """Nothing is running."""


@dataclass(frozen=True, slots=True)
class BulkRepo:
    """A repository whose objects are in a folder, for branches of many records."""

    store: StagingStore
    area: Area
    folder: Path

    @classmethod
    def open(cls, folder: Path, *, kv_url: str = "") -> BulkRepo:
        """The one in this folder, created where there is none. `kv_url`: SQLite in the folder without one."""
        created = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        store = StagingStore.open(StagingConnection(kv_url or f"sqlite:///{folder}/kv.db"))
        if created:
            return cls(store, store.create(NAME, str(folder / "objects"), committer="bench"), folder)
        return cls(store, store.area(NAME), folder)

    def __enter__(self) -> BulkRepo:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.store.close()

    def tree(self, batches: Iterable[RecordColumns]) -> str:
        """A metarange of these records."""
        ranges = self.area.ranges
        return ranges.write_metarange(write_ranges(batches, ranges.sink, ranges.rule))

    def token(self, batches: Iterable[RecordColumns], token: str = "") -> str:
        """A token of these changes, or one with them too."""
        token = token or new_token(NAME, "main")
        for batch in batches:
            for piece in batch.pieces(TRANSACTION_BYTES):
                self.area.tokens.set_many(token, piece)
        return token

    def branch(self, name: str, tree: str, sealed: Sequence[str] = ()) -> BranchRecord:
        """A branch with a commit of a tree, and with sealed tokens, the newest first."""
        commit = self.area.commits.add(
            metarange_id=tree, parents=(), committer="bench", message=name, metadata={}, now=self.area.clock()
        )
        record = BranchRecord(
            id=name, commit_id=commit.id, staging_token=new_token(NAME, name), sealed_tokens=tuple(sealed)
        )
        self.area.branches.create(record)
        return record

    def work(self, branch: str) -> BranchWork:
        """The compaction of a branch's sealed tokens."""
        return work_on(NAME, self.area.branches.get(branch).record, staged=False)

    def write(self, work: BranchWork) -> WrittenTree:
        """What the job does between claim and swap, without Spark: the tree, part by part, each proved."""
        place = ObjectsPlace(str(self.folder / "objects"))
        return TreeWriter(area=self.area, place=place, engine=OneByOne(), lease=FakeLease(), tag="bench").write(work)

    def compact(self, branch: str) -> WrittenTree:
        """A whole compaction of a branch."""
        work = self.work(branch)
        claim(self.area, work, job="bench", token=1)
        written = self.write(work)
        swap_base(self.area, work, written.tree, job="bench", token=1)
        return written
