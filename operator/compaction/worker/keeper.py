"""Keeps the worker's leases: announces the worker, renews, follows its assignments, delivers its reports.

All of it on one event loop, one request at a time per lease; `heartbeat` gives it a thread that the rewrite cannot
block. What the worker must react to arrives in its `inbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.report import JobReport, ReportOutcome
from compaction.errors import InvalidAssignmentError
from compaction.worker.errors import LeaseLostError, PortUnavailableError, StopRequestedError, WorkerLeaseGoneError
from compaction.worker.events import EndReason, Inbox, JobAssigned, JobEnded
from compaction.worker.held import Clock, HeldJobLease
from compaction.worker.patience import SILENCE_LIMIT, Patience
from compaction.worker.ports import JobOffer, LeasePort

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
                log.error("the worker's lease is gone", error=str(error))
                return self._inbox.put(JobEnded(EndReason.LEASE_GONE))
            except StopRequestedError:
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
