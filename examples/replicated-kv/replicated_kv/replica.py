"""One member's log and state: what a leader and its followers do alike.

Entries are numbered from 1. `commit` is the last entry that a majority is known to hold, `applied` the last one in the
state; after a start both are those of the newest snapshot, until the leader says more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.segments.errors import EntryMissingError
from compaction.segments.install.driver import SnapshotReceiver
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.directories import LogSnapshot, read_state
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.installs import Acknowledgement
from compaction.segments.system.system import LogSystem, SystemLimits
from compaction.segments.wal.wal_log import WalLimits
from compaction.segments.writer import NewSegments
from replicated_kv.errors import DivergedError
from replicated_kv.machine import Command, KeyIndex
from replicated_kv.messages import Append, Appended, Position, Status
from replicated_kv.promise import Promise, PromiseFile

_PAGE: Final = 1024
_VALUES: Final = 64
"""So many values are read at once, however large they are."""
_SECONDS: Final = 60.0
"""For one write to the disk: after that the member fails, and its leader or its client tries again."""
_logger = logging.getLogger(__name__)


def log_id(name: str) -> str:
    """The id of a member's log, which is the name of its directory: each replica is a log of its own."""
    return f"kv-{name}"


@dataclass(frozen=True, slots=True)
class Limits:
    """`snapshot_every`: entries. `wal_bytes`: of a write-ahead log file, which is then moved into segments, each of
    `segment_entries`. Small ones, so that one sees something.
    """

    snapshot_every: int = 4096
    wal_bytes: int = 8 << 20
    segment_entries: int = 4096

    def system(self) -> SystemLimits:
        return SystemLimits(
            wal=WalLimits(max_size=self.wal_bytes), segments=NewSegments(max_count=self.segment_entries)
        )


@dataclass(frozen=True, slots=True)
class _DueSnapshot:
    """The state at one entry, which is written once every member that follows has that entry."""

    index: int
    term: int
    state: bytes
    live: LiveSet


@dataclass
class Replica:
    """`trail`: the last entry that every member has which follows this one now; the log keeps what is behind it, so
    that a snapshot does not leave a follower behind that is a few entries late. Any thread may call.
    """

    name: str
    directory: Path
    limits: Limits = field(default_factory=Limits)
    trail: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        """Opens the directory; errors as `LogSystem`."""
        self._lock = threading.RLock()
        self.system = LogSystem(self.directory, limits=self.limits.system())
        try:
            self._promise = PromiseFile(self.directory)
            self.log = self.system.open_log(
                log_id(self.name), rebuild_live=lambda snapshot: KeyIndex.load(read_state(snapshot.data)).live()
            )
            self.commit = self.applied = self.applied_term = self.installed = 0
            self.keys = KeyIndex()
            self._load(self.log.newest_snapshot)
        except BaseException:
            self.system.close()
            raise
        self._receiver = SnapshotReceiver(self.log, term=self.promise.term)
        self._due: _DueSnapshot | None = None
        self._snapshot: Future[LogSnapshot] | None = None
        self._appended: Acknowledgement | None = None

    @property
    def promise(self) -> Promise:
        return self._promise.promise

    @property
    def last(self) -> tuple[int, int]:
        """Index and term of the last entry; zeros without any."""
        return self.log.last or (0, 0)

    @property
    def durable(self) -> int:
        """The last entry up to which everything is on the disk."""
        written = self.log.last_written
        return written.index if written is not None else 0

    @property
    def snapshot_index(self) -> int:
        return self.log.row.snapshot_index or 0

    def follow(self, term: int, leader: str) -> Position:
        """Promise to follow a leader; where this log ends. TermError: an earlier promise is against it."""
        with self._lock:
            self._promise.follow(term, leader)
            # Live entries of half an installation are no log: their leader begins again, or another one leads.
            self._receiver.abort()
            index, at = self.last
            return Position(index=index, term=at, commit=self.commit)

    def accept(self, message: Append, payloads: Sequence[bytes]) -> Appended:
        """Take entries of the leader. Returns when they are durable.

        Raises:
            TermError: of a leader that this member does not follow. DivergedError: they change what is committed.
        """
        first = message.previous_index + 1
        entries = [
            LogEntry(first + place, term, payload)
            for place, (term, payload) in enumerate(zip(message.terms, payloads, strict=True))
        ]
        end = message.previous_index + len(entries)
        with self._lock:
            self._promise.follow(message.term, message.leader)
            # A leader that sends entries has no snapshot under way; the log takes no entries until it is over.
            self._receiver.abort()
            if message.previous_index > self.snapshot_index and (
                self.term_at(message.previous_index) != message.previous_term
            ):
                return Appended(accepted=False, index=self.commit)
            written = self._append_missing(entries)
        if written is not None:
            written.result(_SECONDS)
        with self._lock:
            # A newer leader may have replaced what was just written.
            self._promise.follow(message.term, message.leader)
            self.advance(min(message.commit, end))
        return Appended(accepted=True, index=end)

    def _append_missing(self, entries: Sequence[LogEntry]) -> Acknowledgement | None:
        """Append from the first entry on that the log does not have, which drops all that the log has from there on.

        Never from an earlier one: a message that was late must not drop what a later one has brought.
        """
        entries = [entry for entry in entries if entry.index > self.snapshot_index]
        held = {entry.index: entry.term for entry in self.log.read(entry.index for entry in entries)}
        missing = next((place for place, item in enumerate(entries) if held.get(item.index) != item.term), None)
        if missing is None:
            # All of it is there, but may not be durable yet. Acknowledgements come in the order of the writes.
            return self._appended
        index = entries[missing].index
        if index <= self.commit:
            raise DivergedError(f"{self.name} has another entry {index}, which is committed: it must not change")
        self._appended = self.log.append(entries[missing:])
        return self._appended

    def install(self, term: int, leader: str, data: bytes) -> list[bytes]:
        """Take one message of a leader that sends its snapshot; what is to be answered.

        TermError: of a leader that this member does not follow. InstallMessageError: it is damaged.
        """
        with self._lock:
            self._promise.follow(term, leader)
            answers = self._receiver.receive(data, applied=self.applied or None)
            snapshot = self._receiver.installed
            if snapshot is not None and snapshot.index > self.applied:
                self._load(snapshot)
                self._due = None
                self.installed += 1
                _logger.info("%s: the snapshot of entry %d is installed", self.name, snapshot.index)
            return answers

    def propose(self, commands: Sequence[Command], term: int) -> Acknowledgement:
        """Append commands as entries of `term`. The future completes when they are durable here.

        CommandError: a command that the store does not take. TermError: this member does not lead in `term`.
        """
        payloads = [command.encode() for command in commands]
        with self._lock:
            self._promise.promise.check(term, self.name)
            self._receiver.abort()
            first = self.last[0] + 1
            self._appended = self.log.append(
                [LogEntry(first + place, term, payload) for place, payload in enumerate(payloads)]
            )
            return self._appended

    def entries(self, first: int, limit: int) -> list[LogEntry] | None:
        """Up to `limit` durable entries from `first` on; None when the log does not hold all of them any more."""
        last = min(self.durable, first + limit - 1)
        found = self.log.read(range(first, last + 1))
        return found if len(found) == max(0, last + 1 - first) and first > self.snapshot_index else None

    def term_at(self, index: int) -> int | None:
        """The term of an entry; 0 before the first one, None when the log does not hold it."""
        last, row = self.log.last, self.log.row
        if index == 0:
            return 0
        if last is not None and index == last.index:
            return last.term
        if index == row.snapshot_index:
            return row.snapshot_term
        return next((entry.term for entry in self.log.read([index])), None)

    def advance(self, commit: int) -> None:
        """What is committed up to here is applied, and a snapshot is written when one is due."""
        with self._lock:
            self.commit = max(self.commit, commit)
            while self.applied < self.commit:
                found = self.log.read(range(self.applied + 1, min(self.commit, self.applied + _PAGE) + 1))
                for entry in found:
                    self.keys.apply(entry.index, Command.decode(entry.payload))
                    self.applied, self.applied_term = entry.index, entry.term
                if not found:
                    raise EntryMissingError(str(self.directory), self.applied + 1)
            self._write_snapshot()

    def get(self, key: bytes) -> LogEntry | None:
        """The entry that holds the key's value, read from the log; None when there is no such key."""
        while (index := self.keys.find(key)) is not None:
            found = self.log.read([index])
            if found:
                return found[0]
            # The key was written again, and a snapshot was taken, since its index was found.
            if self.keys.find(key) == index:
                raise EntryMissingError(str(self.directory), index)
        return None

    def scan(self, after: bytes, limit: int, *, limit_bytes: int) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Keys behind `after` with their values, read from the log, and the entry that they are as of."""
        items: list[tuple[bytes, bytes]] = []
        size = 0
        with self._lock:
            page = self.keys.page(after, limit)
            for begin in range(0, len(page), _VALUES):
                part = page[begin : begin + _VALUES]
                entries = self.log.read(index for _, index in part)
                values = {entry.index: Command.decode(entry.payload).value for entry in entries}
                for key, index in part:
                    size += len(key) + len(values[index])
                    if items and size > limit_bytes:
                        return self.applied, items
                    items.append((key, values[index]))
            return self.applied, items

    def status(self) -> Status:
        with self._lock:
            state = self.log.state
            return Status(
                name=self.name,
                term=self.promise.term,
                leader=self.promise.leader or self.name,
                last=self.last[0],
                commit=self.commit,
                applied=self.applied,
                snapshot=self.snapshot_index,
                keys=len(self.keys),
                entries=len(self.log.indexes()),
                segments=state.segments,
                installed=self.installed,
            )

    def close(self) -> None:
        self.system.close()

    def _load(self, snapshot: LogSnapshot | None) -> None:
        if snapshot is not None:
            self.keys = KeyIndex.load(read_state(snapshot.data))
            self.applied, self.applied_term = snapshot.index, snapshot.term
            self.commit = max(self.commit, snapshot.index)

    def _write_snapshot(self) -> None:
        """The state is taken at one moment and written at a later one: see `trail`. One at a time."""
        if self._snapshot is not None:
            if not self._snapshot.done():
                return
            if error := self._snapshot.exception():
                _logger.warning("%s: a snapshot was not written: %s", self.name, error)
            self._snapshot = None
        if self._due is None and self.applied - self.snapshot_index >= self.limits.snapshot_every:
            self._due = _DueSnapshot(self.applied, self.applied_term, self.keys.dump(), self.keys.live())
        if (due := self._due) is not None and (self.trail is None or self.trail() >= due.index):
            self._due = None
            if due.index > self.snapshot_index:
                self._snapshot = self.log.snapshot(due.index, due.term, due.state, due.live)
