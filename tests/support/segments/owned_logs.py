"""What the owner of a system of logs has written, been promised, and found after each of its deaths.

The owner says it in a journal, one JSON line before each operation and one when it is acknowledged. A line that was
written stays when the process is killed. From the lines, any process knows what the logs must hold.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compaction.segments.checking.all_checks import problems_of
from compaction.segments.checking.facts import CheckProblem, LogFacts
from compaction.segments.checking.reading import read_facts
from compaction.segments.errors import NotALogDirectoryError
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.rules import LogRow

Position = tuple[int, int]
"""Index and term. Each is written once in the life of a log: whoever goes back writes a new term."""


def payload(log: str, index: int, term: int) -> bytes:
    """Of one entry: it says which one it is, in 20 to 600 bytes."""
    own = b"%s %d@%d " % (log.encode(), index, term)
    return own.ljust(20 + (index * 7919 + term * 104_729) % 580, b".")


def entries(log: str, first: int, count: int, term: int) -> list[LogEntry]:
    return [LogEntry(index, term, payload(log, index, term)) for index in range(first, first + count)]


class Write(NamedTuple):
    """Entries with consecutive indexes; everything from `first` on that was there before is gone."""

    number: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no caller needs
    term: int


class Snapshot(NamedTuple):
    """What is live at or below `index`."""

    number: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs
    live: LiveSet


class LogModel:
    """One log. `runs`: acknowledged entries (first, last, term), ascending; `writes`, `snapshots`: begun since."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []
        self.writes: deque[Write] = deque()
        self.snapshots: deque[Snapshot] = deque()
        self.snapshot = Snapshot(0, 0, LiveSet.empty())
        self.number = 0
        self.installed = 0
        """Index of the last snapshot that was installed."""

    @property
    def last(self) -> Position | None:
        """The last acknowledged entry."""
        return (self.runs[-1][1], self.runs[-1][2]) if self.runs else None

    def term_of(self, index: int) -> int | None:
        """Of an acknowledged entry."""
        place = bisect_right(self.runs, index, key=lambda run: run[0]) - 1
        return self.runs[place][2] if place >= 0 and index <= self.runs[place][1] else None

    def needed(self) -> dict[int, int]:
        """Index -> term of every acknowledged entry that the log must hold."""
        found = {index: term for index in self.snapshot.live if (term := self.term_of(index)) is not None}
        for first, last, term in self.runs:
            found |= dict.fromkeys(range(max(first, self.snapshot.index + 1), last + 1), term)
        return found

    def is_live(self, index: int) -> bool:
        """At the snapshot in force, and at all that were begun since: one of them may be in force by now."""
        return all(index in snapshot.live for snapshot in (self.snapshot, *self.snapshots))

    def acknowledge(self, number: int) -> None:
        """Writes are acknowledged in order."""
        while self.writes and self.writes[0].number <= number:
            write = self.writes.popleft()
            self._put(write.first, write.first + write.count - 1, write.term)

    def take(self, number: int) -> None:
        """A snapshot is in force."""
        while self.snapshots and self.snapshots[0].number <= number:
            self.snapshot = self.snapshots.popleft()
        needed = self.snapshot.live.smallest if self.snapshot.live else self.snapshot.index
        self.runs = [run for run in self.runs if run[1] >= needed]

    def resolve(self, last: Position | None, snapshot: int) -> None:
        """After a death: the log ends with `last`, so it holds what was begun up to there. AssertionError when no
        prefix of the writes makes that, or one without an acknowledged write; the same of snapshots.
        """
        while self.last != last:
            assert self.writes, f"the log ends with {last}, acknowledged is {self.last}, and nothing else was begun"
            write = self.writes.popleft()
            end = write.first + write.count - 1
            if last is not None and write.term == last[1] and write.first <= last[0] <= end:
                # A batch may be cut at any entry.
                end = last[0]
            self._put(write.first, end, write.term)
        self.writes.clear()
        while self.snapshot.index != snapshot:
            assert self.snapshots, f"snapshot {snapshot} is in force, {self.snapshot} was taken, and none begun since"
            self.take(self.snapshots[0].number)
        self.snapshots.clear()

    def _put(self, first: int, last: int, term: int) -> None:
        while self.runs and self.runs[-1][1] >= first:
            low, _, older = self.runs.pop()
            if low < first:
                self.runs.append((low, first - 1, older))
        if self.runs and self.runs[-1][1] == first - 1 and self.runs[-1][2] == term:
            first = self.runs.pop()[0]
        self.runs.append((first, last, term))


class JournalReader:
    """Follows a journal: `models` are what its lines up to the last `follow` say."""

    def __init__(self, path: Path) -> None:
        self.models: dict[str, LogModel] = defaultdict(LogModel)
        self.lines = 0
        self._path = path
        self._offset = 0

    def follow(self) -> None:
        """Read what was added; the end of a line that is being written waits for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self.lines += 1
            self.apply(json.loads(line))

    def apply(self, line: list[Any]) -> None:
        kind, log, *rest = line
        model = self.models[log]
        match kind:
            case "write":
                model.writes.append(Write(*rest))
                model.number = rest[0]
            case "written":
                model.acknowledge(rest[0])
            case "snapshot":
                model.snapshots.append(Snapshot(rest[0], rest[1], LiveSet.from_ranges(rest[2])))
                model.number = rest[0]
            case "taken":
                model.take(rest[0])
            case "installed":
                model.installed = rest[0]
            case "found":
                model.resolve(None if rest[0] is None else (rest[0], rest[1]), rest[2])


class Journal(JournalReader):
    """The owner's own, which it continues. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.follow()
        # The line that a death has cut off was of an operation that had not begun.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, self._offset)
        os.lseek(self._fd, self._offset, os.SEEK_SET)

    def say(self, *line: Any) -> None:
        """Written with one call, so a death leaves all of it or none."""
        self.apply(list(line))
        data = json.dumps(line).encode() + b"\n"
        assert os.write(self._fd, data) == len(data)


# What a system of logs has promised, entry by entry, and whether a recovered one keeps it.

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
