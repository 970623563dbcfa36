"""A small system of logs in which there is something of everything: written by the library, compacted, in every rule's
sight.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from compaction.segments.cli.commands import group
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import LogCut, write_cut
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.codec import HEADER, RecordEncoder, WalRecord
from compaction.segments.wal.files import wal_name
from compaction.segments.wal.wal_reader import read_wal
from compaction.segments.writer import NewSegments

WAIT: Final = 120.0
LIMITS: Final = SystemLimits(segments=NewSegments(max_count=8), snapshot_grace=1e9)


def entries(first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(index, term, b"entry %d of term %d" % (index, term)) for index in range(first, last + 1)]


def wal_records(path: Path) -> list[WalRecord]:
    """What a file of the write-ahead log holds."""
    with read_wal(path) as reader:
        return list(reader)


def flush(system: LogSystem) -> None:
    """Everything that was appended is in segments afterwards."""
    system.roll().result(WAIT)
    assert system.drain(WAIT)


def varied_system(directory: Path) -> Path:
    """Log `a`: snapshots at 16 and 32, segments of 8 entries up to index 64, of which the first ones are compacted, and
    entries 65-70 in the write-ahead log; log `b`: five entries in the write-ahead log. Returns log `a`.
    """
    log = directory / "a"
    with LogSystem(directory, limits=LIMITS) as system:
        a = system.open_log("a")
        a.append(entries(1, 40)).result(WAIT)
        flush(system)
        a.snapshot(16, 1, b"\x83j", LiveSet.parse("3,9-12")).result(WAIT)
        a.snapshot(32, 1, b"\x83j", LiveSet.parse("3,9,20,30")).result(WAIT)
        a.append(entries(41, 64, term=2)).result(WAIT)
        flush(system)
    done = CliRunner().invoke(group, ["compact", str(log), "--owner-stopped"])
    assert done.exit_code == 0, done.output
    with LogSystem(directory, limits=LIMITS) as system:
        system.open_log("a").append(entries(65, 70, term=2)).result(WAIT)
        system.open_log("b").append(entries(1, 5)).result(WAIT)
        # The file of the session before is empty, and goes; how soon is chance otherwise.
        assert system.drain(WAIT)
    # As of an installation that ended: none of the log's entries is behind it.
    write_cut(directory / "b", LogCut(99, 1))
    return log


def write_wal(directory: Path, number: int, records: Iterable[tuple[bytes, LogEntry]]) -> Path:
    """A write-ahead log file that no library of ours wrote: any writer, any entries."""
    encoder, path = RecordEncoder(), directory / wal_name(number)
    parts = [encoder.head(writer, item.index, item.term, item.payload) + item.payload for writer, item in records]
    path.write_bytes(HEADER + b"".join(parts))
    return path
