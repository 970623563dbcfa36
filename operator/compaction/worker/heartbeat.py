"""The lease keeper in a thread of its own, which the rewrite cannot block.

One thread, one event loop, one connection of its own (`connect` is called inside the thread). The rewriting happens in
other processes (Spark's Python workers) and in threads that wait for them, so this loop is never starved; should it be
after all, `HeldJobLease` notices by itself, because deadlines are checked by the caller.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from compaction.api.job.report import JobReport
from compaction.errors import CompactionError
from compaction.worker.events import EndReason, Inbox, JobEnded
from compaction.worker.held import Clock, HeldJobLease
from compaction.worker.keeper import Connect, LeaseKeeper

T = TypeVar("T")


class Heartbeat:
    """Announces the worker, renews its leases, follows its assignments, delivers its reports.

    Args:
        connect: makes the port; entered and left on the heartbeat's own loop.
        inbox: receives `Assigned` and `JobEnded`.
        slots: how many jobs the worker is ready to hold.
        lease_seconds: duration of the worker's own lease; renewed every third of it.
    """

    def __init__(
        self, connect: Connect, *, inbox: Inbox, slots: int, lease_seconds: float, clock: Clock = time.monotonic
    ) -> None:
        self._inbox = inbox
        self._make_keeper = partial(
            LeaseKeeper, connect, inbox=inbox, slots=slots, lease_seconds=lease_seconds, clock=clock
        )
        # A copy of the context: log lines of the heartbeat carry the policy as well.
        self._thread = threading.Thread(target=partial(copy_context().run, self._run), name="heartbeat", daemon=True)
        self._ready = threading.Event()
        self._failed_to_start: CompactionError | None = None
        self._loop: asyncio.AbstractEventLoop
        self._keeper: LeaseKeeper | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread; returns once the worker is announced.

        Raises:
            CompactionError: the worker could not be announced.
        """
        self._thread.start()
        self._ready.wait()
        if self._failed_to_start is not None:
            self._closed = True
            self._thread.join()
            raise self._failed_to_start

    def deliver(self, lease: HeldJobLease, report: JobReport) -> bool:
        """Leave a report on the lease and stop renewing it; True when it is known to have arrived. Blocks."""
        return self._call(lambda keeper: keeper.deliver(lease, report), default=False)

    def release(self, lease: HeldJobLease) -> None:
        """Stop renewing a lease without a word (it is lost)."""
        self._call(lambda keeper: keeper.release(lease), default=None)

    def refuse(self, why: str) -> None:
        """Take no more assignments, and hand back those that still arrive."""
        self._call(lambda keeper: keeper.refuse(why), default=None)

    def leave_if_unneeded(self) -> bool:
        """Delete the worker's lease unless something was assigned at the last moment; True when it has left."""
        return self._call(lambda keeper: keeper.leave_if_unneeded(), default=True)

    def close(self, *, leave: bool) -> None:
        """Delete the worker's lease (if `leave`) and end the thread. Repeating is harmless."""
        if self._closed:
            return
        self._closed = True
        self._call(lambda keeper: keeper.close(leave=leave), default=None)
        self._thread.join()

    def _call(self, ask: Callable[[LeaseKeeper], Coroutine[Any, Any, T]], *, default: T) -> T:
        """Have the keeper do something on its loop and wait; `default` when the heartbeat is over."""
        if self._keeper is None or not self._thread.is_alive() or self._loop.is_closed():
            return default
        work = ask(self._keeper)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop closed between the check and the call
            work.close()
            return default
        while True:
            try:
                return future.result(timeout=1.0)
            except TimeoutError:
                if not self._thread.is_alive():
                    return default
            except concurrent.futures.CancelledError:
                return default

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except CompactionError as error:
            self._failed_to_start = error
        finally:
            # Whatever ended the loop: nothing is renewed any more, so nothing may be committed any more.
            if not self._closed:
                for lease in self._keeper.held if self._keeper is not None else ():
                    lease.lose("the heartbeat ended")
                self._inbox.put(JobEnded(EndReason.HEARTBEAT_LOST))
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._keeper = self._make_keeper()
        await self._keeper.run(self._ready.set)
