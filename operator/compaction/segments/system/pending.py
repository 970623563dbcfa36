"""Acknowledgements that wait: which futures complete when a table is written up to an index."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from compaction.segments.errors import SegmentLogError
from compaction.segments.memtable.table import LogPosition, MemTable
from compaction.segments.wal.write import Written


class Acknowledgement(Future[LogPosition]):
    """Completes with the last entry's position. It cannot be cancelled: the entries are in the log already."""

    def cancel(self) -> bool:
        return False


class Pending:
    """Futures by mem table, in ascending order of the index that they wait for. The log's lock guards it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[MemTable, deque[tuple[LogPosition, Acknowledgement]]] = {}

    def add(self, table: MemTable, position: LogPosition) -> Acknowledgement:
        """A future that completes with `position` once the table is durable up to it."""
        future = Acknowledgement()
        self._waiting.setdefault(table, deque()).append((position, future))
        return future

    def take(self, marks: Sequence[Written]) -> list[tuple[LogPosition, Acknowledgement]]:
        """What the marks complete; the caller completes it, without the lock."""
        done = []
        for table, index in ((mark.table, mark.index) for mark in marks):
            waiting = self._waiting.get(table)
            while waiting and waiting[0][0].index <= index:
                done.append(waiting.popleft())
            if waiting is not None and not waiting:
                del self._waiting[table]
        return done

    def take_all(self) -> list[Acknowledgement]:
        """Everything, because nothing more is written."""
        futures = [future for waiting in self._waiting.values() for _, future in waiting]
        self._waiting.clear()
        return futures


def complete(done: Sequence[tuple[LogPosition, Acknowledgement]]) -> None:
    for position, future in done:
        future.set_result(position)


def fail(futures: Sequence[Acknowledgement], error: SegmentLogError) -> None:
    for future in futures:
        future.set_exception(error)
