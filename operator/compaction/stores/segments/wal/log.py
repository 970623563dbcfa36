"""The write-ahead log of a system: one thread that writes what all logs sent, in batches, and syncs each batch once.

While a batch is synced, the writes for the next one gather in the queue: so the slower the disk, the larger the batches
(group commit). A file that is large enough is handed on to the segment writer, and the next one begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from compaction.exceptions import SegmentLogError, WalFailedError
from compaction.stores.segments.directory import fs
from compaction.stores.segments.wal.acceptance import Verdict, WriterState, judge
from compaction.stores.segments.wal.current import CurrentFile
from compaction.stores.segments.wal.files import write_writers
from compaction.stores.segments.wal.queue import WalQueue
from compaction.stores.segments.wal.write import RolledFile, WalClient, WalWrite, Written


@dataclass(frozen=True, slots=True)
class WalLimits:
    """`max_size` (bytes) and `max_entries` of a file: it is rolled before the next record once it has as much.

    `batch_bytes` of payload are written and synced at once; `queue_bytes` wait for that at most.
    """

    max_size: int = 64_000_000
    max_entries: int | None = None
    batch_bytes: int = 4 << 20
    queue_bytes: int = 16 << 20


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
        """Creates file `number` and starts the thread. `writers`: what each log has written durably before.

        `on_rolled` may wait, which holds up all logs: the way in which a slow segment writer slows them down.
        """
        self.directory = directory
        self.queue = WalQueue(directory, max_bytes=limits.queue_bytes)
        self._limits = limits
        self._writers = dict(writers)
        self._on_rolled = on_rolled
        self._file = CurrentFile(directory, number)
        self._done: dict[WalClient, list[Written]] = {}
        self._clients: set[WalClient] = set()
        self._resends: dict[WalClient, int] = {}
        self._publish()
        self._thread = threading.Thread(target=self._run, name=f"wal-{directory.name}", daemon=True)
        self._thread.start()

    def roll(self) -> Future[None]:
        """Go on in a new file; completes when the old one is with the segment writer."""
        request: Future[None] = Future()
        self.queue.put(request)
        return request

    def set_writer(self, uid: bytes, state: WriterState) -> None:
        """What a log has written durably, found when it was recovered; before its first write here."""
        self._writers[uid] = state

    def close(self) -> None:
        """Write and sync what waits, and stop. The last file stays: opening the system again moves it into segments."""
        self.queue.close()
        self._thread.join()

    def _run(self) -> None:
        taken: list[WalWrite | Future[None]] = []
        try:
            while taken := self.queue.take(max_bytes=self._limits.batch_bytes):
                self._process(taken)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread, no caller may wait for ever
            self._fail(error, taken)
        finally:
            self._file.close()

    def _process(self, taken: list[WalWrite | Future[None]]) -> None:
        for request in taken:
            if isinstance(request, WalWrite):
                self._clients.add(request.client)
                self._accept(request)
            else:
                self._roll()
                request.set_result(None)
        self._commit()

    def _accept(self, write: WalWrite) -> None:
        client, previous = write.client, write.previous
        smallest_live = client.row.smallest_live
        state = self._writers.get(client.uid)
        written: int | None = None
        for entry in write.entries:
            verdict, after = judge(state, index=entry.index, previous=previous, smallest_live=smallest_live)
            if verdict is Verdict.REQUEST_RESEND and state is not None:
                self._resends[client] = state.last
            if verdict in (Verdict.WRITE, Verdict.WRITE_TRUNCATING):
                if self._is_full():
                    self._mark(write, written)
                    self._roll()
                self._file.add(client, write.table, entry, truncate=verdict is Verdict.WRITE_TRUNCATING)
            if verdict in (Verdict.WRITE, Verdict.WRITE_TRUNCATING, Verdict.BELOW_LIVE):
                written = entry.index
            state, previous = after, entry.index
            if state is not None:
                self._writers[client.uid] = state
        self._mark(write, written)

    def _mark(self, write: WalWrite, index: int | None) -> None:
        if index is not None:
            self._done.setdefault(write.client, []).append(Written(write.table, index))

    def _is_full(self) -> bool:
        limit = self._limits.max_entries
        return self._file.size > self._limits.max_size or (limit is not None and self._file.entries >= limit)

    def _commit(self) -> None:
        """Make the batch durable, then say so."""
        self._file.commit()
        done, self._done = self._done, {}
        resends, self._resends = self._resends, {}
        for client, marks in done.items():
            client.written(marks)
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

    def _fail(self, error: BaseException, taken: list[WalWrite | Future[None]]) -> None:
        """Nothing is acknowledged from here on: what a failed write or sync left on the disk is unknown."""
        failure = error if isinstance(error, SegmentLogError) else WalFailedError(str(self._file.path), str(error))
        waiting = [*taken, *self.queue.fail(failure)]
        self._clients.update(request.client for request in waiting if isinstance(request, WalWrite))
        for client in self._clients:
            client.failed(failure)
        for request in waiting:
            if isinstance(request, Future) and not request.done():
                request.set_exception(failure)
