"""What a system of logs has promised, entry by entry, and whether a recovered one keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from compaction.segments.checking.all_checks import problems_of
from compaction.segments.checking.facts import CheckProblem, LogFacts
from compaction.segments.checking.reading import read_facts
from compaction.segments.errors import NotALogDirectoryError
from compaction.segments.memtable import LogEntry
from compaction.segments.system.log import Log
from compaction.segments.system.rules import LogRow

Content = dict[int, LogEntry]


@dataclass
class History:
    """Every write of one log, in order, and its snapshots. The log is what some prefix of the writes makes of it."""

    writes: list[LogEntry] = field(default_factory=list)
    snapshots: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def after(self, count: int) -> Content:
        """What the log holds after so many writes."""
        content: Content = {}
        for entry in self.writes[:count]:
            _take(content, entry)
        return content

    def possible(self, row: LogRow, acknowledged: int) -> Iterator[Content]:
        """What the log may hold under this row: after the acknowledged writes, and after each that follows them."""
        content = self.after(acknowledged)
        yield needed(content, row)
        for entry in self.writes[acknowledged:]:
            _take(content, entry)
            yield needed(content, row)

    def check(self, log: Log, *, acknowledged: int, snapshots: int) -> None:
        """At least the acknowledged writes, in order, and no other entry than those written; the same of snapshots."""
        row = log.row
        allowed: list[tuple[int, tuple[int, ...]] | None] = [None, *self.snapshots]
        found = None if row.snapshot_index is None else (row.snapshot_index, tuple(row.live or ()))
        assert found in allowed[snapshots:], f"{log.name}: snapshot {found}, {allowed[snapshots:]} possible"
        content = {entry.index: entry for entry in log.read(log.indexes())}
        assert any(content == item for item in self.possible(row, acknowledged)), (
            f"{log.name}: {sorted(content)} is what no prefix of {len(self.writes)} writes makes, {acknowledged} "
            f"acknowledged: {sorted(next(self.possible(row, acknowledged)))}, {row}"
        )


def _take(content: Content, entry: LogEntry) -> None:
    """Indexes ascend, so what a write overwrites is at the end."""
    while content and next(reversed(content)) >= entry.index:
        content.popitem()
    content[entry.index] = entry


def needed(content: Content, row: LogRow) -> Content:
    return {index: entry for index, entry in content.items() if row.needs(index)}


def conforms(directory: Path) -> None:
    """What a power failure leaves breaks no rule that a scan shows: it is what the owner's next start deals with."""
    with suppress(NotALogDirectoryError):
        facts = read_facts(directory)
        problems = [problem for problem in problems_of(facts) if not problem.note]
        found = [problem for problem in problems if not any(_is_flushed_again(problem, log) for log in facts.logs)]
        assert found == [], found


def _is_flushed_again(problem: CheckProblem, log: LogFacts) -> bool:
    """Whether it is a record that a flush to the newest segment left half-written, of an entry that still waits in the
    write-ahead log: the next start flushes it once more. Of a record whose checksum alone is torn, only its payload
    tells.
    """
    if not log.state.refs or problem.path != str(log.directory / log.state.newest):
        return False
    torn = r"corrupt entry at index (\d+),|payload of index (\d+), .* is another in the write-ahead log"
    told = re.search(torn, problem.what)
    return told is not None and int(told[1] or told[2]) in (log.waiting or {})
