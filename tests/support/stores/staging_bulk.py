"""Millions of records of a staging area by the column, and branches that consist of them: for benchmarks.

Record n has the n-th key in order. Keys are like those of a partitioned table (66 bytes, long common prefixes), values
have 114 bytes: an identity and an entry with an address and a checksum, as an importer stages them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from compaction.staging.compaction import BranchWork, claim, swap_base, work_on
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import I64, U8, RecordColumns, binary_array
from compaction.staging.format.identity import frame_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.format.ranges import write_ranges
from compaction.staging.refs.branches import BranchRecord
from compaction.staging.rewriting.tree import TreeWriter, WrittenTree
from compaction.staging.staged.rows import new_token
from compaction.staging.store import StagingConnection, StagingStore
from compaction.worker.tasks import ObjectsPlace
from support.processes.worker_ports import FakeLease

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
