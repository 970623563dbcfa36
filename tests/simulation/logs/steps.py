"""A system of logs whose threads take their steps when asked: one batch, one file, one snapshot at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from compaction.catalogs.manager.futures import forward, outcome_of
from compaction.segments.directory.fs import regular_identity, regular_segments
from compaction.segments.errors import CorruptEntryError, EntryMissingError, MissingLiveIndexError, SegmentLogError
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES, FileIdentity
from compaction.segments.system import system as system_module
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import RolledFile, WriteAheadLog
from compaction.segments.writer import SegmentWriter

if TYPE_CHECKING:
    from simulation.logs.owner import Owner


class SteppedWal(WriteAheadLog):
    """One batch at a step. An error ends it as it ends the thread, and the simulation."""

    _inside = False

    def _start(self) -> None:
        pass

    def step(self) -> bool:
        if self._inside or not self.queue._requests:
            return False
        self._inside = True
        taken = self.queue.take(max_bytes=self._limits.batch_bytes)
        try:
            self._process(taken)
        except BaseException as error:
            self._fail(error, taken)
            raise
        finally:
            self._inside = False
        return True

    def close(self) -> None:
        self.queue.close()
        while self.step():
            pass
        self._file.close()


class SteppedSegmentWriter(SegmentWriter):
    """One rolled file at a step; a full queue makes the write-ahead log take one, unless that is inside one."""

    def _start(self) -> None:
        pass

    def accept(self, rolled: RolledFile, *, wait: bool = True) -> None:
        while wait and len(self._waiting) >= self._max_waiting and self.step():
            pass
        self._waiting.append(rolled)

    def step(self) -> bool:
        if self._busy or not self._waiting:
            return False
        self._busy = True
        self._empty(self._waiting.popleft())
        self._busy = False
        return True

    def drain(self, timeout: float | None = None) -> bool:
        while self.step():
            pass
        return True

    def close(self) -> None:
        pass


class SteppedExecutor:
    """Stands where the system has a pool of one thread."""

    def __init__(self, **_: Any) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._inside = False

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: function(*args)))
        return future

    def step(self) -> bool:
        if self._inside or not self._waiting:
            return False
        self._inside = True
        future, action = self._waiting.popleft()
        outcome = outcome_of(action)
        self._inside = False
        forward(outcome, future)
        return True

    def shutdown(self) -> None:
        while self.step():
            pass


class SteppedSystem:
    """A system, and the steps of its three threads."""

    def __init__(self, directory: Path, limits: SystemLimits, clock: Callable[[], float]) -> None:
        with _stepped():
            self.system = LogSystem(directory, limits=limits, clock=clock)
        wal, writer, snapshots = self.system._wal, self.system._segments, self.system._snapshots
        assert isinstance(wal, SteppedWal)
        assert isinstance(writer, SteppedSegmentWriter)
        executor: Any = snapshots
        self.threads: dict[str, Callable[[], bool]] = {
            "write-ahead log": wal.step,
            "segment writer": writer.step,
            "snapshots": executor.step,
        }

    def finish(self) -> None:
        """Everything that waits."""
        while self._go_on():
            pass

    def close(self) -> None:
        self.system.close()

    def _go_on(self) -> bool:
        return any(step() for step in self.threads.values())

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Who waits for a future within the block lets the threads go on until it is done."""
        original = Future.result

        def result(future: Future[Any], timeout: float | None = None) -> Any:
            while not future.done() and self._go_on():
                pass
            return original(future, 0)

        with mock.patch.object(Future, "result", result):
            yield


@contextmanager
def _stepped() -> Iterator[None]:
    with (
        mock.patch.object(system_module, "WriteAheadLog", SteppedWal),
        mock.patch.object(system_module, "SegmentWriter", SteppedSegmentWriter),
        mock.patch.object(system_module, "ThreadPoolExecutor", SteppedExecutor),
    ):
        yield


# Damage of one entry in a segment: a changed byte of its payload, or its record gone from the index.


@dataclass(frozen=True, slots=True)
class Damage:
    """`index`: of the entry of this log that cannot be read any more."""

    uid: str
    index: int
    segment: Path
    identity: FileIdentity | None

    def is_untouched(self) -> bool:
        """Whether the damaged segment is still there, as a failed job has to leave it."""
        return regular_identity(self.segment) == self.identity

    def is_named_by(self, error: SegmentLogError) -> bool:
        """Whether it is the error of a damaged entry of the log, with its index."""
        named = getattr(error, "index", None)
        return isinstance(error, CorruptEntryError | MissingLiveIndexError | EntryMissingError) and named == self.index


def damage(system: Path, dice: Random, owner: Owner) -> Damage | None:
    """Damages a needed entry in one of the segments that are not the last; None where there is no such entry."""
    uid = dice.choice(("a", "b"))
    log = owner.stepped.system.open_log(uid)
    names = regular_segments(system / uid)[:-1]
    held = [
        (segment, int(row))
        for index in log.indexes()
        for segment, rows in log.segments.view._rows(np.array([index], dtype=np.uint64))
        for row in rows
        if segment.name in names
    ]
    if not held:
        return None
    segment, row = dice.choice(held)
    data = bytearray(segment.path.read_bytes())
    snapshot = log.row.snapshot_index
    below = snapshot is not None and int(segment.idx.max()) <= snapshot
    inside = 0 < row < segment.count - 1 and bool(segment.effective.all())
    if below and inside and dice.random() < 0.7:
        # The record before takes its slot. Above the snapshot what is not there could be a gap.
        size = SLOT_BYTES[segment.version]
        slot = HEADER_BYTES + row * size
        data[slot : slot + size] = data[slot - size : slot]
    else:
        data[int(segment.offset[row])] ^= 0xFF
    segment.path.write_bytes(data)
    log.refresh()
    return Damage(uid, int(segment.idx[row]), segment.path, regular_identity(segment.path))
