"""Keeps the worker's leases, in a thread of its own: announces, renews, follows assignments, delivers reports."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.errors import CompactionError, InvalidAssignmentError
from compaction.worker.attempt import Clock, EndReason, HeldJobLease, Inbox, JobAssigned, JobEnded
from compaction.worker.errors import LeaseLostError, PortUnavailableError, StopRequestedError, WorkerLeaseGoneError
from compaction.worker.ports import JobOffer, LeasePort

# Time limits of the heartbeat for answers, derived from the duration of a lease.

T = TypeVar("T")

SILENCE_LIMIT = 4
"""Lease durations without any answer after which a worker gives up: by then its jobs belong to other workers."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds for requests about leases of `lease_seconds`, on a monotonic clock."""

    lease_seconds: float
    clock: Clock

    @property
    def retry_seconds(self) -> float:
        """Pause before another try."""
        return min(1.0, self.lease_seconds / 15)

    async def pause(self) -> None:
        """Wait before another try."""
        await asyncio.sleep(self.retry_seconds)

    async def answered(self, call: Awaitable[T]) -> T:
        """One request, bounded by a third of the lease: a hung connection must leave time for another try."""
        limit = self.lease_seconds / 3
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError as error:
            raise PortUnavailableError(f"no answer within {limit:.1f} s") from error

    async def until_answered(self, call: Callable[[], Awaitable[T]], *, leases: float = 1) -> T:
        """Repeat a request for so many lease durations; then the last PortUnavailableError is raised."""
        give_up_at = self.clock() + leases * self.lease_seconds
        while True:
            try:
                return await self.answered(call())
            except PortUnavailableError:
                if self.clock() >= give_up_at:
                    raise
                await self.pause()


# Keeps the worker's leases: announces the worker, renews, follows its assignments, delivers its reports.
#
# All of it on one event loop, one request at a time per lease; `heartbeat` gives it a thread that the rewrite cannot
# block. What the worker must react to arrives in its `inbox`.

log = structlog.get_logger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[LeasePort]]


class LeaseKeeper:
    """Made and used on one event loop; `run` first. See `heartbeat.Heartbeat` for the arguments."""

    def __init__(self, connect: Connect, *, inbox: Inbox, slots: int, lease_seconds: float, clock: Clock) -> None:
        self._connect = connect
        self._inbox = inbox
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._patience = Patience(lease_seconds, clock)
        self._closing = asyncio.Event()
        self._port: LeasePort
        self._tasks: asyncio.TaskGroup
        self._keepers: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._seen: dict[tuple[str, int], HeldJobLease | None] = {}
        self._refusing: str | None = None
        self._renew_now = asyncio.Event()

    @property
    def held(self) -> list[HeldJobLease]:
        """Every lease that was handed to the worker and still is its."""
        return [lease for lease in self._seen.values() if lease is not None]

    async def run(self, on_announced: Callable[[], None]) -> None:
        """Announce the worker, say so, and keep its leases until `close`.

        Raises:
            CompactionError: the worker could not be announced.
        """
        async with self._connect() as self._port:
            sent_at = self._clock()
            announce = partial(self._port.announce, slots=self._slots)
            await self._patience.until_answered(announce, leases=SILENCE_LIMIT)
            async with asyncio.TaskGroup() as self._tasks:
                forever = [
                    self._tasks.create_task(self._keep_worker(sent_at)),
                    self._tasks.create_task(self._follow_offers()),
                ]
                on_announced()
                await self._closing.wait()
                for task in [*forever, *self._keepers.values()]:
                    task.cancel()

    # --- the worker's own lease ---

    async def _keep_worker(self, sent_at: float) -> None:
        """Renew the worker's lease until closed; tell the inbox when there is a reason to end."""
        asked_to_stop = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sent_at + self._lease_seconds / 3 - self._clock())):
                    await self._renew_now.wait()
            self._renew_now.clear()
            attempt_at = self._clock()
            try:
                await self._patience.answered(self._port.renew_worker(slots=0 if self._refusing else self._slots))
            except WorkerLeaseGoneError as error:
                # Final: names are used once, so the worker cannot announce itself again.
                log.error("the worker's lease is gone", error=str(error))
                return self._inbox.put(JobEnded(EndReason.LEASE_GONE))
            except StopRequestedError:
                # Raised after the write: the Lease is renewed, and goes on being renewed while the jobs wind up.
                if not asked_to_stop:
                    log.info("asked to stop")
                    self._inbox.put(JobEnded(EndReason.STOP_REQUESTED))
                asked_to_stop = True
                sent_at = attempt_at
            except PortUnavailableError as error:
                silence = self._clock() - sent_at
                log.warning("cannot renew the worker's lease", silence_seconds=round(silence, 1), error=str(error))
                # The coordinator has given this worker's jobs to others long ago. A worker that cannot be reached is of
                # no use.
                if silence > SILENCE_LIMIT * self._lease_seconds:
                    return self._inbox.put(JobEnded(EndReason.UNREACHABLE))
                await self._patience.pause()
            else:
                sent_at = attempt_at

    async def leave_if_unneeded(self) -> bool:
        """Delete the worker's lease unless something was assigned at the last moment; True when it has left."""
        # First say that nothing should be assigned, then look, then leave: what is assigned after the look finds no
        # worker and goes to another, at nobody's cost.
        try:
            await self._patience.answered(self._port.renew_worker(slots=0))
            offers = await self._patience.answered(self._port.offers(wait=False))
            # `_keepers`: an assignment that is being accepted just now, slowly.
            if self._keepers or any((offer.job_name, offer.token) not in self._seen for offer in offers):
                await self._patience.answered(self._port.renew_worker(slots=self._slots))
                return False
            await self._patience.answered(self._port.leave())
        except (PortUnavailableError, StopRequestedError, WorkerLeaseGoneError) as error:
            # To stay is safe: the next renewal offers the slots again, and finds out whether the worker has to end.
            log.info("not leaving yet", error=str(error))
            return False
        return True

    async def refuse(self, why: str) -> None:
        """Take no more assignments, and hand back those that still arrive. Says so at once: a renewal may be seconds
        away, and a job that is handed back would come again.
        """
        self._refusing = why
        self._renew_now.set()

    async def close(self, *, leave: bool) -> None:
        """Delete the worker's lease (if `leave`) and let `run` end."""
        if leave:
            try:
                await self._patience.answered(self._port.leave())
            except PortUnavailableError as error:
                log.warning("the worker's lease could not be deleted; it will expire", error=str(error))
        self._closing.set()

    # --- assignments ---

    async def _follow_offers(self) -> None:
        while True:
            try:
                offers = await self._port.offers(wait=True)
            except PortUnavailableError as error:
                log.warning("cannot read the assignments", error=str(error))
                await self._patience.pause()
                continue
            current = {(offer.job_name, offer.token): offer for offer in offers}
            for key in self._seen.keys() - current.keys():
                if key not in self._keepers:
                    del self._seen[key]
            for key, offer in current.items():
                if key not in self._seen:
                    # Marked before the task runs: the same offer comes with every event of the watch, and must be taken
                    # once.
                    self._seen[key] = None
                    self._keepers[key] = self._tasks.create_task(self._take(offer))

    async def _take(self, offer: JobOffer) -> None:
        """Accept an offer: read the job, renew once (the deadline starts there), hand it over, keep renewing."""
        key = (offer.job_name, offer.token)
        bound = log.bind(job=offer.job_name, token=offer.token)
        try:
            if self._refusing is not None:
                await self._hand_back(offer, self._refusing)
                return
            assignment = await self._patience.until_answered(lambda: self._port.fetch(offer))
            sent_at = self._clock()
            await self._patience.until_answered(lambda: self._port.renew_job(offer.job_name, offer.token, progress=0))
        except LeaseLostError as error:
            bound.info("assignment withdrawn before it began", error=str(error))
            return
        except PortUnavailableError as error:
            del self._seen[key]  # look again when the API server is back
            bound.warning("assignment not readable yet", error=str(error))
            return
        except InvalidAssignmentError as error:
            # Said at once: otherwise the Lease would run out first, and the job would go to the next worker.
            report = JobReport(
                token=offer.token, outcome=ReportOutcome.FAILED, reason=JobReason.INVALID_JOB, message=str(error)
            )
            await self._report_until_delivered(offer.job_name, report, is_over=lambda: False)
            return
        finally:
            self._keepers.pop(key, None)
        lease = HeldJobLease(assignment, sent_at=sent_at, clock=self._clock)
        self._seen[key] = lease
        self._keepers[key] = self._tasks.create_task(self._keep_job(lease))
        self._inbox.put(JobAssigned(lease))

    async def _hand_back(self, offer: JobOffer, why: str) -> None:
        report = JobReport(
            token=offer.token,
            outcome=ReportOutcome.FAILED,
            reason=JobReason.WORKER_STOPPED,
            message=f"handed back unstarted: {why}",
            charged=False,
        )
        await self._patience.until_answered(lambda: self._port.report(offer.job_name, report))

    async def _keep_job(self, lease: HeldJobLease) -> None:
        """Renew a job's lease until it is lost; cancelled when the job has something to report."""
        wait = lease.assignment.lease_seconds / 3
        while not lease.why_lost:
            await asyncio.sleep(wait)
            sent_at = self._clock()
            try:
                granted = await self._patience.answered(
                    self._port.renew_job(lease.job_name, lease.token, progress=lease.progress)
                )
            except LeaseLostError as error:
                lease.lose(str(error))
            except PortUnavailableError as error:
                # Tried again soon: `why_lost` ends the loop when no renewal gets through in time.
                log.warning("cannot renew a job's lease", job=lease.job_name, token=lease.token, error=str(error))
                wait = self._patience.retry_seconds
            else:
                lease.renewed(sent_at=sent_at, granted=granted)
                wait = max(0.0, sent_at + lease.assignment.lease_seconds / 3 - self._clock())
        log.warning("lease lost", job=lease.job_name, token=lease.token, why=lease.why_lost)

    async def release(self, lease: HeldJobLease) -> None:
        """Stop renewing a lease without a word (it is lost)."""
        keeper = self._keepers.pop((lease.job_name, lease.token), None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def deliver(self, lease: HeldJobLease, report: JobReport) -> bool:
        """Leave a report on the lease and stop renewing it; True when it is known to have arrived."""
        # One writer per lease: the renewals end before the report is sent, and the report renews by itself.
        await self.release(lease)
        return await self._report_until_delivered(lease.job_name, report, is_over=lambda: lease.taken)

    async def _report_until_delivered(self, job_name: str, report: JobReport, *, is_over: Callable[[], bool]) -> bool:
        give_up_at = self._clock() + SILENCE_LIMIT * self._lease_seconds
        while not is_over() and self._clock() < give_up_at and not self._closing.is_set():
            try:
                await self._patience.answered(self._port.report(job_name, report))
            except LeaseLostError as error:
                log.warning("the report is no longer expected", job=job_name, token=report.token, error=str(error))
                return False
            except PortUnavailableError as error:
                log.warning("report not delivered yet", job=job_name, token=report.token, error=str(error))
                await self._patience.pause()
            else:
                return True
        return False


# The lease keeper in a thread of its own, which the rewrite cannot block.
#
# One thread, one event loop, one connection of its own (`connect` is called inside the thread). The rewriting happens
# in other processes (Spark's Python workers) and in threads that wait for them, so this loop is never starved; should
# it be after all, `HeldJobLease` notices by itself, because deadlines are checked by the caller.


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
                # Not the limit of the call: only a check whether the loop that has to answer still runs.
                if not self._thread.is_alive():
                    return default
            except concurrent.futures.CancelledError:
                # The loop ended with the call in it.
                return default

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except CompactionError as error:
            # Kept for `start`, which raises it in the thread that waits there.
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
