"""The write-ahead log of a system: one thread that writes what all logs sent, in batches, and syncs each batch once.

While a batch is synced, the writes for the next one gather in the queue: so the slower the disk, the larger the batches
(group commit). A file that is large enough is handed on to the segment writer, and the next one begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

from compaction.segments.directory import fs
from compaction.segments.errors import SegmentLogError, WalFailedError
from compaction.segments.memtable.table import MemTable
from compaction.segments.wal.acceptance import Verdict, WriterState, judge
from compaction.segments.wal.current import CurrentFile, WalLimits
from compaction.segments.wal.files import remove_stop, write_writers
from compaction.segments.wal.queue import WalQueue
from compaction.segments.wal.write import RolledFile, WalClient, WalWrite, Written, joined


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
        """What a log has written durably, found when it was recovered; before its first write here."""
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
            if verdict is Verdict.WRITE or verdict is Verdict.WRITE_TRUNCATING:
                self._write(write, position, truncate=verdict is Verdict.WRITE_TRUNCATING)
                return
            if after is not None:
                self._writers[client.uid] = after
            if verdict is Verdict.REQUEST_RESEND and state is not None:
                self._resends[client] = state.last
            if index >= smallest_live:
                return
            position = min(smallest_live - first, len(entries))
            previous = first + position - 1
            if verdict is Verdict.BELOW_LIVE:
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
            client.written([Written(table, index) for table, index in marks.items()])
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
