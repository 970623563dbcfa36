"""The write-ahead log of a system: a bounded queue, one thread that writes in batches, one sync for each batch."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from compaction.segments.directory import fs
from compaction.segments.errors import LogBusyError, LogClosedError, SegmentLogError, WalFailedError
from compaction.segments.memtable import LogEntry, MemTable, Seq
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.codec import HEAD, HEADER, RecordEncoder, WriterState, WriteVerdict, judge
from compaction.segments.wal.files import WalEnd, create_wal, remove_stop, wal_name, write_writers

# Plain data that logs hand to the write-ahead log, and that it hands on, and the log as both of them see it.


class WrittenBatch(NamedTuple):
    """All entries of a table up to `index` are synced, or lie below the smallest live index."""

    table: MemTable
    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs


class WalClient(Protocol):
    """A log as the write-ahead log and the segment writer see it. Every method may be called from their threads."""

    @property
    def uid(self) -> bytes:
        """The log's id in records: the name of its directory."""

    @property
    def directory(self) -> Path:
        """The directory of its segments."""

    @property
    def row(self) -> LogRow:
        """The state of its snapshot, as known now."""

    def written(self, marks: Sequence[WrittenBatch]) -> None:
        """A batch is durable; marks in the order of the writes."""

    def resend(self, after: int) -> None:
        """A write is missing: send every entry above index `after` again."""

    def failed(self, error: SegmentLogError) -> None:
        """Nothing more is written; called once."""

    def flushed(self, pieces: Sequence[tuple[MemTable, Seq]], number: int) -> None:
        """Note that the segments hold, durably, all that the log needs of these entries of file `number`."""


class WalWrite(NamedTuple):
    """Entries of one log with consecutive indexes, all held by one mem table.

    `previous`: the index before the first one in the log; None when the log holds none.
    """

    client: WalClient
    table: MemTable
    previous: int | None
    entries: Sequence[LogEntry]
    size: int


def joined(writes: Iterable[WalWrite]) -> list[WalWrite]:
    """The same entries in fewer writes: of each log, in order, those that go on exactly where the one before ends.

    So what the write-ahead log decides and notes for each write it does once, however small the appends were. The order
    of writes of different logs changes, which means nothing.
    """
    groups: list[list[WalWrite]] = []
    growing: dict[WalClient, list[WalWrite]] = {}
    for write in writes:
        group = growing.get(write.client)
        if group is not None and _goes_on(group[-1], write):
            group.append(write)
        else:
            growing[write.client] = group = [write]
            groups.append(group)
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _goes_on(before: WalWrite, write: WalWrite) -> bool:
    last = before.entries[-1].index
    return write.previous == last and write.table is before.table and write.entries[0].index == last + 1


def _one(group: list[WalWrite]) -> WalWrite:
    entries = list(chain.from_iterable([write.entries for write in group]))
    return group[0]._replace(entries=entries, size=sum([write.size for write in group]))


@dataclass(frozen=True, slots=True)
class RolledFile:
    """A file that no more records go to: what each log has in it, by mem table, oldest table first; where it ends.

    `writers`: the ids of all logs that have records in it, needed or not. `held`: those of them that could not be
    opened, whose records must stay. `is_held`: an earlier process has left only such records in it.
    """

    path: Path
    end: WalEnd
    pieces: dict[WalClient, list[tuple[MemTable, Seq]]]
    writers: frozenset[bytes] = frozenset()
    held: frozenset[bytes] = frozenset()
    is_held: bool = False

    def holding(self, broken: frozenset[bytes]) -> RolledFile:
        """The same file, of which nothing of these logs may go into segments or be deleted."""
        pieces = {client: own for client, own in self.pieces.items() if client.uid not in broken}
        return replace(self, pieces=pieces, held=self.writers & broken)


# The queue before the write-ahead log: bounded in bytes, so a log that writes faster than the disk waits.

Request = WalWrite | Future[int]
"""A write, or the wish to roll over to the next file, which completes with that file's number."""


class WalQueue:
    """A queue of several producers and one consumer."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        """`path` names the write-ahead log in errors; `max_bytes` of payload wait at most (one larger write alone)."""
        self._path = path
        self._max_bytes = max_bytes
        self._requests: deque[Request] = deque()
        self._reserved = 0
        self._closed = False
        self._error: SegmentLogError | None = None
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._idle = False
        """The consumer waits: only then is it worth a signal."""

    def reserve(self, size: int, *, timeout: float | None) -> None:
        """Wait for room for a write of `size` bytes and take it; `put_reserved` or `release` must follow.

        Raises:
            LogBusyError: no room within `timeout` seconds (None: wait for it).
            LogClosedError, WalFailedError: nothing is written any more.
        """
        with self._lock:
            if self._reserved and self._reserved + size > self._max_bytes:
                self._wait_for_room(size, timeout)
            self._check_open()
            self._reserved += size

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._reserved and self._reserved + size > self._max_bytes:
            self._check_open()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise LogBusyError(str(self._path), f"{self._reserved} bytes wait to be written")
            self._room.wait(left)

    def release(self, size: int) -> None:
        """Return room that was reserved and is not used."""
        with self._lock:
            self._reserved -= size
            self._room.notify_all()

    def put(self, request: Request) -> None:
        """Never waits, whatever waits already. LogClosedError, WalFailedError: nothing is written any more."""
        with self._lock:
            self._check_open()
            self._reserved += request.size if isinstance(request, WalWrite) else 0
            self._append(request)

    def put_reserved(self, write: WalWrite) -> None:
        """A write into the room that was reserved for it; errors as `put`."""
        with self._lock:
            self._check_open()
            self._append(write)

    def _append(self, request: Request) -> None:
        self._requests.append(request)
        if self._idle:
            self._idle = False
            self._arrived.notify()

    def take(self, *, max_bytes: int) -> list[Request]:
        """Take the requests that wait, up to `max_bytes` of them and at least one.

        Waits for the first one; empty once closed and drained.
        """
        with self._lock:
            while not self._requests and not self._closed:
                self._idle = True
                self._arrived.wait()
            taken: list[Request] = []
            size = 0
            while self._requests and size < max_bytes:
                request = self._requests.popleft()
                taken.append(request)
                size += request.size if isinstance(request, WalWrite) else 0
            self._reserved -= size
            self._room.notify_all()
            return taken

    def close(self) -> None:
        """Nothing more can be put; what waits can still be taken."""
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            self._room.notify_all()

    def fail(self, error: SegmentLogError) -> list[Request]:
        """Nothing more can be put, because of `error`; returns what waited."""
        with self._lock:
            self._error = error
            self._closed = True
            waiting = list(self._requests)
            self._requests.clear()
            self._arrived.notify_all()
            self._room.notify_all()
            return waiting

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise LogClosedError(str(self._path), "its system of logs is closed")


# The file that records go to now: encodes them, gathers a batch, writes and syncs it in one piece.

_JOINED: Final = 2048
"""Payloads of up to this many bytes on average are copied together: a vector of many parts costs more than the copy."""


@dataclass(frozen=True, slots=True)
class WalLimits:
    """`max_size` (bytes) and `max_entries` of a file: it is rolled before the next record once it has as much.

    `batch_bytes` of payload are written and synced at once; `queue_bytes` wait for that at most.
    """

    max_size: int = 64_000_000
    max_entries: int | None = None
    batch_bytes: int = 4 << 20
    queue_bytes: int = 16 << 20


class CurrentFile:
    """One open write-ahead log file. For the write-ahead log's thread alone."""

    def __init__(self, directory: Path, number: int) -> None:
        """Creates the file; its name is durable once the directory is synced. OSError passes through."""
        self.number = number
        self.path = directory / wal_name(number)
        self.size = len(HEADER)
        self.entries = 0
        self._encoder = RecordEncoder()
        self._parts: list[bytes] = []
        self._small: list[bytes] = []
        self._pieces: dict[WalClient, dict[MemTable, Seq]] = {}
        self._fd = create_wal(directory, number)

    def add(self, write: WalWrite, begin: int, limits: WalLimits, *, truncate: bool) -> int:
        """Put the entries of a write from position `begin` on into the batch, until the file is full; returns the
        position behind them. At least one is put, with the truncate flag if it is asked for.
        """
        uid, entries = write.client.uid, write.entries
        end = self._end(write, begin, limits)
        rest = entries if begin == 0 and end == len(entries) else entries[begin:end]
        if truncate or not self._encoder.knows(uid):
            index, term, payload = rest[0]
            self._put([self._encoder.head(uid, index, term, payload, truncate=truncate)], [payload])
            rest = rest[1:]
        if rest:
            self._put(self._encoder.heads(uid, rest), [payload for _, _, payload in rest])
        self.entries += end - begin
        self._note(write.client, write.table, entries[begin].index, entries[end - 1].index)
        return end

    def _end(self, write: WalWrite, begin: int, limits: WalLimits) -> int:
        """The position behind the last entry that this file takes: the one that makes it full, or the last of all."""
        entries, size = write.entries, self.size
        end = len(entries)
        if limits.max_entries is not None:
            end = min(end, begin + max(1, limits.max_entries - self.entries))
        if size + write.size + end * HEAD.size <= limits.max_size:
            return end
        for position in range(begin, end):
            size += HEAD.size + len(entries[position].payload)
            if size > limits.max_size:
                return position + 1
        return end

    def _put(self, heads: list[bytes], payloads: list[bytes]) -> None:
        """Records into the batch: small ones as one piece each, of large ones head and payload as they are."""
        size = sum(map(len, payloads))
        self.size += sum(map(len, heads)) + size
        if size <= _JOINED * len(payloads):
            self._small += [head + payload for head, payload in zip(heads, payloads, strict=True)]
            return
        self._join_small()
        self._parts += chain.from_iterable(zip(heads, payloads, strict=True))

    def _join_small(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []

    def is_full(self, limits: WalLimits) -> bool:
        """Return whether the next record goes into the next file."""
        return self.size > limits.max_size or (limits.max_entries is not None and self.entries >= limits.max_entries)

    def _note(self, client: WalClient, table: MemTable, low: int, high: int) -> None:
        """low..high of a table are in this file. What was sent again may be there already."""
        pieces = self._pieces.get(client)
        if pieces is None:
            pieces = self._pieces[client] = {}
        seq = pieces.get(table)
        if seq is None:
            seq = pieces[table] = Seq()
        following = low if seq.last is None else max(low, seq.last + 1)
        if following <= high:
            seq.extend(following, high)

    def commit(self) -> None:
        """Write the batch and make it durable."""
        self._join_small()
        if self._parts:
            parts, self._parts = self._parts, []
            fs.write(self._fd, parts)
            fs.sync_data(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def rolled(self) -> RolledFile:
        """Return the content of the file, for the segment writer."""
        pieces = {client: list(pieces.items()) for client, pieces in self._pieces.items()}
        return RolledFile(self.path, WalEnd(self.size, self.size), pieces, frozenset(piece.uid for piece in pieces))


# The write-ahead log of a system: one thread that writes what all logs sent, in batches, and syncs each batch once.
#
# While a batch is synced, the writes for the next one gather in the queue: so the slower the disk, the larger the
# batches (group commit). A file that is large enough is handed on to the segment writer, and the next one begins.


class WriteAheadLog:
    """Writes entries of many logs; `queue` takes them. A log must not send writes from within its own callbacks, except
    those that `resend` asks for.
    """

    def __init__(
        self,
        directory: Path,
        *,
        number: int,
        limits: WalLimits,
        writers: Mapping[bytes, WriterState],
        on_rolled: Callable[[RolledFile], None],
    ) -> None:
        """Creates file `number`, removes the record of a clean stop, starts the thread. `writers`: what each log has
        written durably before.

        `on_rolled` may wait, which holds up all logs: the way in which a slow segment writer slows them down.
        """
        self.directory = directory
        self.queue = WalQueue(directory, max_bytes=limits.queue_bytes)
        self._limits = limits
        self._writers = dict(writers)
        self._on_rolled = on_rolled
        self._file = CurrentFile(directory, number)
        self._done: dict[WalClient, dict[MemTable, int]] = {}
        self._clients: set[WalClient] = set()
        self._resends: dict[WalClient, int] = {}
        self._failed = False
        # The sync that makes the new file's name durable makes this so, too: before any record.
        remove_stop(directory)
        self._publish()
        self._thread = threading.Thread(target=self._run, name=f"wal-{directory.name}", daemon=True)
        self._start()

    def _start(self) -> None:
        """A simulation takes the thread's steps by itself."""
        self._thread.start()

    def roll(self) -> Future[int]:
        """Go on in a new file; completes when the old one is with the segment writer, with the number of the new one:
        nothing that was sent before is in it. A file without records is not left.
        """
        request: Future[int] = Future()
        self.queue.put(request)
        return request

    def set_writer(self, uid: bytes, state: WriterState) -> None:
        """Set the state that a log has written durably, found when it was recovered; before its first write here."""
        self._writers[uid] = state

    def close(self) -> None:
        """Write and sync what waits, and stop. The last file stays: opening the system again moves it into segments."""
        self.queue.close()
        self._thread.join()

    def last_file(self) -> RolledFile | None:
        """Once it is closed, the file that stays, all of it synced; None if what is on the disk is unknown."""
        return None if self._failed else self._file.rolled()

    def _run(self) -> None:
        taken: list[WalWrite | Future[int]] = []
        try:
            while taken := self.queue.take(max_bytes=self._limits.batch_bytes):
                self._process(taken)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread, no caller may wait for ever
            self._fail(error, taken)
        finally:
            self._file.close()

    def _process(self, taken: list[WalWrite | Future[int]]) -> None:
        writes: list[WalWrite] = []
        for request in taken:
            if isinstance(request, WalWrite):
                writes.append(request)
                continue
            self._accept_all(writes)
            writes = []
            self._roll()
            request.set_result(self._file.number)
        self._accept_all(writes)
        self._commit()

    def _accept_all(self, writes: Iterable[WalWrite]) -> None:
        for write in joined(writes):
            self._clients.add(write.client)
            self._accept(write)

    def _accept(self, write: WalWrite) -> None:
        """Only the first entry of a write can leave a gap. Below the smallest live index, or in a gap, the write is
        judged again where it reaches that index.
        """
        client, entries = write.client, write.entries
        smallest_live, first = client.row.smallest_live, entries[0].index
        position, previous = 0, write.previous
        while position < len(entries):
            index = first + position
            state = self._writers.get(client.uid)
            verdict, after = judge(state, index=index, previous=previous, smallest_live=smallest_live)
            if verdict is WriteVerdict.WRITE or verdict is WriteVerdict.WRITE_TRUNCATING:
                self._write(write, position, truncate=verdict is WriteVerdict.WRITE_TRUNCATING)
                return
            if after is not None:
                self._writers[client.uid] = after
            if verdict is WriteVerdict.REQUEST_RESEND and state is not None:
                self._resends[client] = state.last
            if index >= smallest_live:
                return
            position = min(smallest_live - first, len(entries))
            previous = first + position - 1
            if verdict is WriteVerdict.BELOW_LIVE:
                self._mark(write, previous)

    def _write(self, write: WalWrite, position: int, *, truncate: bool) -> None:
        """The entries from a position on, over as many files as they need."""
        client, entries = write.client, write.entries
        while position < len(entries):
            if self._file.is_full(self._limits):
                self._roll()
            position = self._file.add(write, position, self._limits, truncate=truncate)
            truncate = False
            last = entries[position - 1].index
            self._mark(write, last)
            self._writers[client.uid] = WriterState(last)

    def _mark(self, write: WalWrite, index: int) -> None:
        """Of many writes in a batch, the last one of each table says it all."""
        done = self._done.get(write.client)
        if done is None:
            done = self._done[write.client] = {}
        done[write.table] = index

    def _commit(self) -> None:
        """Make the batch durable, then say so."""
        self._file.commit()
        done, self._done = self._done, {}
        resends, self._resends = self._resends, {}
        for client, marks in done.items():
            client.written([WrittenBatch(table, index) for table, index in marks.items()])
        for client, after in resends.items():
            client.resend(after)

    def _roll(self) -> None:
        self._commit()
        if not self._file.entries:
            return
        old = self._file
        self._file = CurrentFile(self.directory, old.number + 1)
        old.close()
        self._publish()
        self._on_rolled(old.rolled())

    def _publish(self) -> None:
        """Make the current file's name durable before the first batch in it, and the writers snapshot with it."""
        write_writers(self.directory, self._writers)
        fs.sync_directory(self.directory)

    def _fail(self, error: BaseException, taken: list[WalWrite | Future[int]]) -> None:
        """Nothing is acknowledged from here on: what a failed write or sync left on the disk is unknown."""
        self._failed = True
        failure = error if isinstance(error, SegmentLogError) else WalFailedError(str(self._file.path), str(error))
        waiting = [*taken, *self.queue.fail(failure)]
        self._clients.update(request.client for request in waiting if isinstance(request, WalWrite))
        for client in self._clients:
            client.failed(failure)
        for request in waiting:
            if isinstance(request, Future) and not request.done():
                request.set_exception(failure)
