"""Ranges and metaranges in an object storage, written under the id of their content; the last that were read stay
cached.
"""

from __future__ import annotations

import re
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from compaction.staging.errors import CorruptRangeError, MissingRangeError
from compaction.staging.format.columns import BINARY, RecordColumns
from compaction.staging.format.ranges import (
    FOLDER,
    BreakRule,
    RangeInfo,
    RangeSink,
    TableKind,
    read_metarange,
    table_id,
    write_metarange,
)
from compaction.staging.format.table_reader import BATCH_BYTES, TAIL_BYTES, TableReader
from compaction.storage.errors import ObjectMissingError, ObjectTruncatedError
from compaction.storage.objects.store import ObjectInfo, ObjectStorage
from compaction.storage.pace import UNLIMITED, Pace

# The cache of what was read last, up to a number of bytes.

T = TypeVar("T")


class RecentlyUsed(Generic[T]):
    """Values by their name; the least recently used go first. Safe for threads."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: so much is kept at most, by the sizes that `put` is given."""
        self._most = nbytes
        self._used = 0
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> T | None:
        """The value of a name, None when it is not kept."""
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                return None
            self._kept.move_to_end(name)
            return found[0]

    def put(self, name: str, value: T, nbytes: int) -> bool:
        """Keep a value of so many bytes; False when it is larger than all there is room for, so not kept."""
        if nbytes > self._most:
            return False
        with self._lock:
            self._used += nbytes - self._kept.pop(name, (value, 0))[1]
            self._kept[name] = value, nbytes
            while self._used > self._most:
                _, (_, freed) = self._kept.popitem(last=False)
                self._used -= freed
        return True

    def drop(self, name: str) -> None:
        """Do not keep this name any longer."""
        with self._lock:
            if (found := self._kept.pop(name, None)) is not None:
                self._used -= found[1]


# Ranges and metaranges in an object storage: read from any key on, written under the id of their content.
#
# docs/design/staging.md#trees.

CACHE_BYTES: Final = 64 << 20
"""Ends of tables that are kept, and as much again of lists of ranges."""
SPOOL_BYTES: Final = 8 << 20
"""A table that is being written lies in memory up to this size, in a temporary file above."""
LISTED: Final = 50_000
"""The lists of metaranges of up to so many ranges are kept; in larger ones each lookup seeks."""
NEIGHBOURS_BYTES: Final = 64 << 10
"""What is read of a range for a key and those that come soon after it."""
_INFO_BYTES: Final = 400
"""Memory of a range in a list, without its keys."""
_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class RangeStorage:
    """The ranges and metaranges of one storage namespace. Safe for threads.

    The id "" is the tree without records. Every method raises MissingRangeError and CorruptRangeError (also for an id
    that is none), UnsupportedRangeError, and ObjectError when the object storage fails.
    """

    def __init__(
        self,
        objects: ObjectStorage,
        *,
        rule: BreakRule | None = None,
        namespace: str = "",
        cache_bytes: int = CACHE_BYTES,
        pace: Pace = UNLIMITED,
    ) -> None:
        """`namespace`: the folder of `objects` that is the storage namespace. `rule`: where written ranges end,
        lakeFS's defaults without one. `pace` is asked before bytes of tables are read or written."""
        self.objects: Final = objects
        self.rule: Final = rule or BreakRule()
        self.pace: Final = pace
        self._folder = f"{namespace.strip('/')}/{FOLDER}" if namespace.strip("/") else FOLDER
        self._readers: RecentlyUsed[TableReader] = RecentlyUsed(cache_bytes)
        self._lists: RecentlyUsed[_RangeList] = RecentlyUsed(cache_bytes)

    def path(self, table: str, *, metarange: str = "") -> str:
        """Return the path of the range or metarange of this id in `objects`. `metarange`: the one that refers to it."""
        if not _ID.fullmatch(table):
            raise CorruptRangeError(
                metarange or self._folder, 0, f"{table[:80]!a} is no id of a range (64 hexadecimal digits)"
            )
        return self._folder + table

    def exists(self, table: str) -> bool:
        """Return whether there is an object of this id."""
        try:
            self.objects.head(self.path(table))
        except ObjectMissingError:
            return False
        return True

    def open(self, table: str, *, metarange: str = "") -> TableReader:
        """A range or metarange. `metarange`: the one that lists it, for errors."""
        kept = self._readers.get(table)
        if kept is not None:
            return kept
        source = ObjectSource(self.objects, self.path(table, metarange=metarange), table, metarange, self.pace)
        reader = TableReader(source)
        # The index at hand is one block, which the end of the table mostly has.
        self._readers.put(table, reader, 2 * min(source.size, TAIL_BYTES))
        return reader

    def content_id(self, table: str, kind: TableKind) -> str:
        """The id that the records of a stored table have: all of it is read. It is `table` unless it is damaged."""
        return table_id(self.open(table), kind)

    def ranges(self, metarange: str, start: bytes = b"") -> Iterator[RangeInfo]:
        """The ranges of a tree in order, from the first that may hold a key from `start` on."""
        if not metarange:
            return iter(())
        listed = self._listed(metarange)
        if listed is not None:
            return listed.after(start)
        return self._read_list(metarange, start)

    def lookup(self, metarange: str, key: bytes) -> RangeInfo | None:
        """The range of a tree within whose bounds a key lies, None when there is none."""
        if not metarange:
            return None
        listed = self._listed(metarange)
        ranges = self._read_list(metarange, key, batch_bytes=1) if listed is None else listed.after(key)
        found = next(ranges, None)
        return found if found is not None and found.min_key <= key else None

    def get(self, metarange: str, key: bytes) -> bytes | None:
        """The framed value of a key in a tree, None when it has none."""
        info = self.lookup(metarange, key)
        return self.open(info.id, metarange=metarange).get(key) if info else None

    def get_many(self, metarange: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The framed values of those of the keys that a tree has. Neighbours are read together, once."""
        wanted, found, at = sorted(set(keys)), dict[bytes, bytes](), 0
        while at < len(wanted):
            info = self.lookup(metarange, wanted[at])
            table = None if info is None else self.open(info.id, metarange=metarange)
            batch = None if table is None else next(table.batches(wanted[at], batch_bytes=NEIGHBOURS_BYTES), None)
            if batch is None:
                at += 1
                continue
            # Up to the last key of the batch, what is not in it is not in the tree.
            end = bisect_right(wanted, batch.keys[-1].as_py(), at)
            rows = pc.index_in(pa.array(wanted[at:end], BINARY), batch.keys).drop_null()
            found.update(RecordColumns(batch.keys.take(rows), batch.values.take(rows)).pairs())
            at = end
        return found

    def records(self, metarange: str, start: bytes = b"", stop: bytes | None = None) -> Iterator[RecordColumns]:
        """The records of a tree with start <= key < stop (None: to the end), in order; no batch is empty."""
        for info in self.ranges(metarange, start):
            if stop is not None and info.min_key >= stop:
                return
            yield from self.range_records(info, start, stop, metarange=metarange)

    def range_records(
        self, info: RangeInfo, start: bytes = b"", stop: bytes | None = None, *, metarange: str = ""
    ) -> Iterator[RecordColumns]:
        """The records of one range with start <= key < stop. `metarange`: the one that lists it, for errors.

        CorruptRangeError also when the range is not the one that was listed: another count, keys outside its bounds.
        """
        reader = self.open(info.id, metarange=metarange)
        name = self._folder + info.id
        if reader.properties.records != info.count:
            said = f"{info.count} in metarange {metarange}" if metarange else f"{info.count}"
            raise CorruptRangeError(name, 0, f"it has {reader.properties.records} records, and should have {said}")
        # A pass without bounds proves the number of records too.
        whole_end = None if stop is None or stop > info.max_key else stop
        for batch in reader.batches(b"" if start <= info.min_key else start, whole_end):
            if batch.keys[0].as_py() < info.min_key or batch.keys[-1].as_py() > info.max_key:
                raise CorruptRangeError(name, 0, "it has keys outside the bounds that its metarange lists")
            yield batch

    def check(self, metarange: str) -> None:
        """Open a tree and each of its ranges: MissingRangeError or CorruptRangeError when one cannot be used."""
        for info in self.ranges(metarange):
            self.open(info.id, metarange=metarange)

    def stored(self) -> Iterator[ObjectInfo]:
        """All objects of the namespace that may be ranges or metaranges, in no order; `path` is the id."""
        for info in self.objects.list(self._folder.rstrip("/")):
            name = info.path.removeprefix(self._folder)
            if _ID.fullmatch(name):
                yield replace(info, path=name)

    def modified(self, table: str) -> datetime | None:
        """Return the time at which an object was written last; None: there is none."""
        try:
            return self.objects.head(self.path(table)).modified
        except ObjectMissingError:
            return None

    def delete(self, tables: Sequence[str]) -> list[str]:
        """Delete objects; the ids of those that are gone."""
        failed = {path for path, _ in self.objects.delete([self.path(table) for table in tables])}
        for table in tables:
            self.forget(table)
        return [table for table in tables if self.path(table) not in failed]

    def sink(self) -> RangeSink:
        """Return the sink of a range whose id is known at its end. What is never stored leaves nothing behind."""
        return SpooledSink(self)

    def write_metarange(self, ranges: Iterable[RangeInfo]) -> str:
        """Write the metarange of these ranges, and return its id. RangeRecordError when two of them overlap."""
        sink = SpooledSink(self)
        info = write_metarange(ranges, sink)
        sink.store(info)
        return info.id

    def forget(self, table: str) -> None:
        """Drop what is kept of an id: its object was deleted or restored."""
        self._readers.drop(table)
        self._lists.drop(table)

    def _listed(self, metarange: str) -> _RangeList | None:
        """The list of a metarange, None when it is too long to be kept."""
        kept = self._lists.get(metarange)
        if kept is None:
            if self.open(metarange).properties.records > LISTED:
                kept = _TOO_LONG
            else:
                kept = _RangeList.of(self._read_list(metarange))
            if kept is _TOO_LONG or not self._lists.put(metarange, kept, kept.nbytes):
                self._lists.put(metarange, _TOO_LONG, _INFO_BYTES)
        return None if kept is _TOO_LONG else kept

    def _read_list(self, metarange: str, start: bytes = b"", *, batch_bytes: int = BATCH_BYTES) -> Iterator[RangeInfo]:
        reader = self.open(metarange)
        name = self._folder + metarange
        if reader.properties.user.get(b"type", b"metaranges") != TableKind.METARANGES.value.encode():
            raise CorruptRangeError(name, 0, "it is no metarange by its properties")
        return read_metarange(reader, name, start, batch_bytes=batch_bytes)


@dataclass(frozen=True, slots=True)
class _RangeList:
    """The ranges of a metarange, and their last keys."""

    ranges: tuple[RangeInfo, ...]
    lasts: tuple[bytes, ...]

    @classmethod
    def of(cls, ranges: Iterable[RangeInfo]) -> _RangeList:
        every = tuple(ranges)
        return cls(every, tuple(item.max_key for item in every))

    @property
    def nbytes(self) -> int:
        return sum(_INFO_BYTES + len(item.min_key) + len(item.max_key) for item in self.ranges)

    def after(self, start: bytes) -> Iterator[RangeInfo]:
        for number in range(bisect_left(self.lasts, start), len(self.ranges)):
            yield self.ranges[number]


_TOO_LONG: Final = _RangeList((), ())
"""Stands for a list that is not kept."""


class ObjectSource:
    """A table in an object storage, for `TableReader`. Opening it asks for its size."""

    def __init__(self, objects: ObjectStorage, path: str, table: str, metarange: str, pace: Pace = UNLIMITED) -> None:
        self.name = path
        self._objects = objects
        self._pace = pace
        self._missing = MissingRangeError(table, path, metarange)
        try:
            self.size = objects.head(path).size
        except ObjectMissingError:
            raise self._missing from None

    def read(self, offset: int, length: int) -> bytes:
        """MissingRangeError when the object was deleted meanwhile; fewer bytes when it became shorter."""
        self._pace(max(0, min(length, self.size - offset)))
        try:
            return self._objects.get_range(self.name, offset, min(length, self.size - offset))
        except ObjectMissingError:
            raise self._missing from None
        except ObjectTruncatedError:
            # The reader compares the length, and reports the place with the error.
            return b""


class SpooledSink:
    """A table on its way to the object storage."""

    def __init__(self, storage: RangeStorage) -> None:
        self._storage = storage
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115

    def write(self, data: bytes, /) -> int:
        return self._file.write(data)

    def store(self, info: RangeInfo) -> None:
        """Put the object under its id. An equal one that is there already is replaced: its age begins again."""
        self._storage.pace(self._file.tell(), written=True)
        self._file.seek(0)
        self._storage.objects.put(self._storage.path(info.id), cast(Any, self._file))
        self._file.close()

    def __del__(self) -> None:
        self._file.close()
