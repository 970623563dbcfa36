"""What a compaction of the same log costs an owner that writes, and what the rules of live indexes save it in writes.

Latency: from an append of one entry to its acknowledgement, one after the other, while `compactor segments compact`
runs in a process of its own, as fast as it can and with a limit of bytes per second, and as many without it, in turn.
The promise is about one limit; a compaction without any takes what the disk has. Write amplification: bytes written to
the write-ahead log and to segments over bytes of payload appended; without the rules, nothing is known to be dead.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import Fact, Workspace
from compaction.segments.directory import fs
from compaction.segments.directory.fs import regular_segments, segment_links
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.files import WAL_SUFFIX
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments

WAIT: Final = 600.0
MOST_TIMES: Final = 2.0
LEAST_APPENDS: Final = 50
LIMITS: Final = (None, "128M", "64M", "32M")
PROMISED: Final = "64M"
COMMAND: Final = (sys.executable, "-m", "compaction.cli.main", "segments", "compact")


def measure(workspace: Workspace) -> Iterator[Fact]:
    for size in workspace.pick((256, 4096), (256,)):
        yield from _latencies(workspace, size)
    if workspace.wants("write amplification"):
        yield from _amplification(workspace)


# --- latency --------------------------------------------------------------------------------------------------------


@dataclass
class Latencies:
    """Seconds of each append of all rounds, in the order in which they were taken, and of each compaction."""

    alone: list[list[float]] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, alone: list[float], beside: list[float], seconds: float) -> None:
        """One round."""
        self.alone.append(alone)
        self.beside.append(beside)
        self.seconds.append(seconds)

    def times(self, hundredths: int) -> float:
        """How many times as long beside a compaction: the median over the rounds."""
        pairs = zip(self.alone, self.beside, strict=True)
        return statistics.median(percentile(b, hundredths) / percentile(a, hundredths) for a, b in pairs)

    def row(self, which: Sequence[Sequence[float]]) -> str:
        taken = [statistics.median(percentile(item, hundredths) for item in which) for hundredths in (50, 99)]
        most = statistics.median(max(item) for item in which)
        return ", ".join(
            f"{name} {1e3 * s:.2f} ms" for name, s in zip(("p50", "p99", "max"), (*taken, most), strict=True)
        )


def percentile(values: Sequence[float], hundredths: int) -> float:
    """The smallest value that so many hundredths of all do not exceed."""
    ascending = sorted(values)
    return ascending[max(0, -(-len(ascending) * hundredths // 100) - 1)]


def _latencies(workspace: Workspace, size: int) -> Iterator[Fact]:
    titles = {limit: f"append {size} B, {_words(limit)}" for limit in workspace.pick(LIMITS, (None, PROMISED))}
    wanted = {limit: title for limit, title in titles.items() if workspace.wants(title)}
    if not wanted:
        return
    original = workspace.directory / f"sparse-{size}"
    entries = workspace.pick(4096, 64)
    made = generate_log(
        original / "log",
        pattern=Pattern.RANDOM,
        segments=workspace.pick(96, 6),
        entries_per_segment=entries,
        payload_bytes=1024,
        sync=False,
    )
    taken = {limit: Latencies() for limit in wanted}
    for _ in range(workspace.pick(5, 1)):
        for limit, latencies in taken.items():
            copy = workspace.directory / "copy"
            _copy(original, copy)
            with LogSystem(copy, limits=SystemLimits(segments=NewSegments(max_count=entries))) as system:
                log = system.open_log("log")
                append = _appender(log, made.last_index + 1, os.urandom(size))
                beside, seconds = _beside(log, append, limit)
                # The same number, with the same files, and nothing beside it.
                latencies.add([append() for _ in beside], beside, seconds)
                assert segment_links(log.directory), "nothing was compacted beside the appends"
    shutil.rmtree(original)
    for limit, title in wanted.items():
        yield from _facts(title, taken[limit], promised=limit == PROMISED)


def _words(limit: str | None) -> str:
    return "a compaction without limit" if limit is None else f"a compaction of {limit} bytes per second"


def _facts(title: str, taken: Latencies, *, promised: bool) -> Iterator[Fact]:
    seconds = statistics.median(taken.seconds)
    yield Fact(f"{title}: without it", taken.row(taken.alone))
    yield Fact(f"{title}: beside it", f"{taken.row(taken.beside)}; it took {seconds:.1f} s")
    times, title = taken.times(99), f"{title}: p99, times"
    if promised:
        yield Fact(title, f"{times:.2f}", f"<= {MOST_TIMES:g}x", times <= MOST_TIMES)
    else:
        yield Fact(title, f"{times:.2f}")


def _copy(original: Path, copy: Path) -> None:
    """The owner writes the newest segment only, and a compaction replaces names: all others may be links."""
    shutil.rmtree(copy, ignore_errors=True)
    newest = regular_segments(original / "log")[-1]

    def link(source: str, target: str) -> None:
        if os.path.basename(source) == newest:
            shutil.copy2(source, target)
        else:
            os.link(source, target)

    shutil.copytree(original, copy, copy_function=link)


def _appender(log: Log, first: int, payload: bytes) -> Callable[[], float]:
    """Appends the next entry; returns the seconds until it is acknowledged."""
    following = iter(range(first, 1 << 62))

    def append() -> float:
        entry = LogEntry(next(following), 1, payload)
        begun = time.perf_counter()
        log.append([entry]).result(WAIT)
        return time.perf_counter() - begun

    return append


def _beside(log: Log, append: Callable[[], float], limit: str | None) -> tuple[list[float], float]:
    """One append after the other for as long as another process compacts the log; the seconds that this took."""
    taken: list[float] = []
    options = () if limit is None else ("--max-bytes-per-second", limit)
    begun = time.perf_counter()
    with subprocess.Popen([*COMMAND, str(log.directory), *options], stdout=subprocess.DEVNULL) as compactor:
        while compactor.poll() is None or len(taken) < LEAST_APPENDS:
            taken.append(append())
        seconds = time.perf_counter() - begun
    assert compactor.returncode == 0
    return taken, seconds


# --- write amplification --------------------------------------------------------------------------------------------


@dataclass
class Written:
    """Bytes written to each kind of file."""

    wal: int = 0
    segments: int = 0
    appended: int = 0

    def __str__(self) -> str:
        wal, segments = self.wal / self.appended, self.segments / self.appended
        return f"{self.amplification:.2f} ({wal:.2f} write-ahead log, {segments:.2f} segments)"

    @property
    def amplification(self) -> float:
        return (self.wal + self.segments) / self.appended


def _amplification(workspace: Workspace) -> Iterator[Fact]:
    without = _written(workspace, live=None)
    yield Fact("write amplification without live indexes", str(without))
    for name, step in (("nothing live", 0), ("every 8th live", 8), ("every 2nd live", 2)):
        written = _written(workspace, live=step)
        met = written.amplification <= without.amplification
        yield Fact(f"write amplification, {name}", str(written), "<= without", met)


def _written(workspace: Workspace, *, live: int | None) -> Written:
    """Entries of 1 KiB; a snapshot after every 512 with each `live`-th of them live. None: no snapshot at all."""
    directory, rounds, each = workspace.directory / "written", workspace.pick(64, 2), 512
    shutil.rmtree(directory, ignore_errors=True)
    limits = SystemLimits(wal=WalLimits(max_size=4 << 20), segments=NewSegments(max_count=4096))
    payload = os.urandom(1024)
    with _counting() as written, LogSystem(directory, limits=limits) as system:
        log, kept = system.open_log("log"), list[int]()
        for first in range(1, rounds * each, each):
            for begin in range(first, first + each, 16):
                done = log.append([LogEntry(index, 1, payload) for index in range(begin, begin + 16)])
            last = done.result(WAIT).index
            written.appended += each * len(payload)
            if live is not None:
                kept += range(first, last + 1, live) if live else []
                log.snapshot(last, 1, b"\x83j", LiveSet.from_indexes(kept)).result(WAIT)
        system.roll().result(WAIT)
        assert system.drain(WAIT)
    return written


@contextmanager
def _counting() -> Iterator[Written]:
    written, write, write_at = Written(), fs.write, fs.write_at

    def count(fd: int, size: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith(WAL_SUFFIX):
            written.wal += size
        elif path.endswith(".segment"):
            written.segments += size

    def counted(fd: int, buffers: Sequence[memoryview | bytes]) -> None:
        count(fd, sum(len(part) for part in buffers))
        write(fd, buffers)

    def counted_at(fd: int, data: bytes, offset: int) -> None:
        count(fd, len(data))
        write_at(fd, data, offset)

    fs.write, fs.write_at = counted, counted_at
    try:
        yield written
    finally:
        fs.write, fs.write_at = write, write_at
