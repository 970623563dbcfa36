"""The write-ahead log beside the bare system calls: the same bytes in the same batches, `writev` and `fdatasync`.

Appends of one entry, of 16 and of 64, to 1 and to 64 logs in turn, all acknowledged at the end. The rival writes the
batches that a run of ours came to, recorded beforehand. Recovery, which fills the mem tables, is beside reading the
file; neither finds it in the page cache, as after a restart of the machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import Fact, Race, Side, Workspace, least_ratio
from compaction.segments.directory import fs
from compaction.segments.memtable import LogEntry
from compaction.segments.system.log import Log
from compaction.segments.system.opening import recover
from compaction.segments.system.rules import LogRow
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import HEADER
from compaction.segments.wal.files import wal_files
from compaction.segments.wal.wal_log import WalLimits

LIMITS: Final = SystemLimits(wal=WalLimits(max_size=1 << 40))
"""No roll: what is measured is the write-ahead log alone."""
WAIT: Final = 600.0
Batches = list[list[int]]


@dataclass
class Case:
    """One size of entries, number of logs and entries per append."""

    directory: Path
    payload: bytes
    logs: int
    entries: int
    per_append: int
    batches: Batches = field(default_factory=list)
    system: LogSystem | None = None
    opened: list[Log] = field(default_factory=list)
    work: list[list[LogEntry]] = field(default_factory=list)

    def prepare(self) -> None:
        """An empty system with its logs, and the entries of each append."""
        self.finish()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self.system = LogSystem(self.directory / "system", limits=LIMITS)
        self.opened = [self.system.open_log(f"log{number}") for number in range(self.logs)]
        rounds = self.entries // self.logs // self.per_append
        self.work = [
            [LogEntry(index, 1, self.payload) for index in range(first, first + self.per_append)]
            for first in range(0, rounds * self.per_append, self.per_append)
        ]

    def append(self) -> None:
        """Everything, acknowledged."""
        futures = [log.append(entries) for entries in self.work for log in self.opened]
        for future in futures:
            future.result(WAIT)

    def finish(self) -> None:
        if self.system is not None:
            self.system.close()
            self.system = None

    def record(self) -> None:
        """The batches of one run."""
        self.prepare()
        with _recorded(self.batches):
            self.append()
        self.finish()

    def write_bare(self) -> None:
        """The same batches without anything around them."""
        data = memoryview(os.urandom(max(max(batch) for batch in self.batches)))
        fd = os.open(self.directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for batch in self.batches:
                buffers = [data[:size] for size in batch]
                for begin in range(0, len(buffers), fs.IOV_MAX):
                    os.writev(fd, buffers[begin : begin + fs.IOV_MAX])
                os.fdatasync(fd)
        finally:
            os.close(fd)

    @property
    def bytes(self) -> int:
        return sum(sum(batch) for batch in self.batches)


@contextmanager
def _recorded(batches: Batches) -> Iterator[None]:
    write = fs.write

    def recording(fd: int, buffers: Sequence[memoryview | bytes]) -> None:
        if list(buffers) != [HEADER]:
            batches.append([len(part) for part in buffers])
        write(fd, buffers)

    fs.write = recording
    try:
        yield
    finally:
        fs.write = write


def measure(workspace: Workspace) -> Iterator[Race | Fact]:
    for size in (256, 4096):
        for logs in (1, 64):
            for per_append in (1, 16, 64):
                title = f"append {size} B, {logs} {'log' if logs == 1 else 'logs'}, {per_append} per append"
                if workspace.wants(title):
                    yield from _append(workspace, title, size, logs, per_append)
        if workspace.wants(f"recovery, {size} B"):
            yield from _recovery(workspace, size)


def _append(workspace: Workspace, title: str, size: int, logs: int, per_append: int) -> Iterator[Race | Fact]:
    entries = workspace.pick(25_600, 4096)
    case = Case(workspace.directory / "append", os.urandom(size), logs, entries, per_append)
    case.record()
    yield Race(
        title,
        "MB",
        case.bytes / 1e6,
        Side("write-ahead log", case.append, case.prepare),
        Side("writev + fdatasync", case.write_bare),
        target=least_ratio(0.6),
    )
    case.finish()
    yield Fact(f"{title}: entries per batch", f"{entries / len(case.batches):.0f}")


def _recovery(workspace: Workspace, size: int) -> Iterator[Race]:
    case = Case(workspace.directory / "recovery", os.urandom(size), 16, workspace.pick(102_400, 2048), 16)
    case.prepare()
    case.append()
    case.finish()
    (path,) = wal_files(case.directory / "system")

    kept: list[object] = []

    def recovered() -> None:
        logs = {
            log.uid: log for log in (Log(old.name, old.directory, row=LogRow(), snapshot=None) for old in case.opened)
        }
        found = recover(case.directory / "system", logs)
        assert sum(len(log.tables.visible()) for log in logs.values()) == case.entries
        assert len(found.files) == 1
        # Giving the memory back is no part of it.
        kept.append((logs, found))

    def forget() -> None:
        """The file is synced, so its pages can go."""
        kept.clear()
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    yield Race(
        f"recovery, {size} B",
        "MB",
        path.stat().st_size / 1e6,
        Side("mem tables", recovered, forget),
        Side("read the file", path.read_bytes, forget),
        target=least_ratio(0.5),
    )
