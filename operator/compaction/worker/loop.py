"""The worker's main loop: announce, take what is assigned, run it in threads, report, exit when no job needs it.

The engine (Spark) is up before `Worker.run` is called, so its start is never charged to a job's lease. A worker ends

* idle: nothing assigned for `idle_seconds`;
* on request: SIGTERM, or the coordinator's stop; running jobs stop before their next commit and say so;
* because it must: its own lease is gone, the API server does not answer, the engine died, or its executors need more
  memory than they have, which only another worker's can be given. Each has its own exit code.

However it ends, what was committed stays committed and what was not is invisible: that is the store's doing, not the
loop's.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from enum import IntEnum
from functools import partial
from typing import Final

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.errors import InvalidAssignmentError
from compaction.worker.attempt import AttemptFinished, Clock, EndReason, HeldJobLease, Inbox, JobAssigned, JobEnded
from compaction.worker.errors import EngineLostError, ExecutorsOutOfMemoryError, JobStoppedError, LeaseLostError
from compaction.worker.keeper import Heartbeat
from compaction.worker.ports import JobRunner

log = structlog.get_logger(__name__)


class WorkerExit(IntEnum):
    """Exit codes of `compactor worker`; the launcher and a person reading `ps` can tell what happened."""

    IDLE = 0
    STOP_REQUESTED = 64
    LEASE_GONE = 65
    UNREACHABLE = 66
    ENGINE_LOST = 67
    HEARTBEAT_LOST = 68
    EXECUTORS_OUT_OF_MEMORY = 69
    TERMINATED = 143


_EXITS = {
    EndReason.STOP_REQUESTED: WorkerExit.STOP_REQUESTED,
    EndReason.LEASE_GONE: WorkerExit.LEASE_GONE,
    EndReason.UNREACHABLE: WorkerExit.UNREACHABLE,
    EndReason.ENGINE_LOST: WorkerExit.ENGINE_LOST,
    EndReason.HEARTBEAT_LOST: WorkerExit.HEARTBEAT_LOST,
    EndReason.EXECUTORS_OUT_OF_MEMORY: WorkerExit.EXECUTORS_OUT_OF_MEMORY,
    EndReason.TERMINATED: WorkerExit.TERMINATED,
}

_WHY = {
    EndReason.STOP_REQUESTED: "the coordinator asked the worker to stop",
    EndReason.LEASE_GONE: "the worker's lease is gone",
    EndReason.UNREACHABLE: "the API server does not answer",
    EndReason.ENGINE_LOST: "Spark went away",
    EndReason.HEARTBEAT_LOST: "the heartbeat ended",
    EndReason.EXECUTORS_OUT_OF_MEMORY: "its executors were killed for using more memory than they have",
    EndReason.TERMINATED: "the worker received SIGTERM",
}

LAST_WORDS: Final = "worker ends"
EXIT_WORDS: Final[Mapping[int, str]] = {int(_EXITS[reason]): words for reason, words in _WHY.items()}
"""What each exit code but 0 means, for readers who see only the code."""


def start_thread(work: Callable[[], None], name: str) -> None:
    """Run a job beside the loop. Daemon threads: one that hangs in a dead file system must not keep the process from
    ending.
    """
    threading.Thread(target=partial(copy_context().run, work), name=name, daemon=True).start()


class Worker:
    """Runs up to `slots` jobs at a time until there is a reason to end.

    Args:
        stop_seconds: how long running jobs may take to reach a stopping point once the worker has to end.
        start: runs a job beside the loop.
    """

    def __init__(
        self,
        *,
        heartbeat: Heartbeat,
        inbox: Inbox,
        runner: JobRunner,
        slots: int,
        idle_seconds: float,
        stop_seconds: float = 30.0,
        clock: Clock = time.monotonic,
        start: Callable[[Callable[[], None], str], None] = start_thread,
    ) -> None:
        self._start = start
        self._heartbeat = heartbeat
        self._inbox = inbox
        self._runner = runner
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._waiting: deque[HeldJobLease] = deque()
        self._running: set[HeldJobLease] = set()

    def run(self) -> WorkerExit:
        """Announce the worker and serve until the end.

        Raises:
            CompactionError: the worker could not be announced at all.
        """
        self._heartbeat.start()
        log.info("worker announced", slots=self._slots)
        try:
            reason = self._serve()
            if reason is None:
                log.info("idle, leaving", idle_seconds=self._idle_seconds)
                return WorkerExit.IDLE
            self._wind_up(reason)
            return _EXITS[reason]
        finally:
            self._heartbeat.close(leave=True)

    def _serve(self) -> EndReason | None:
        """Handle events until an end is due; None when idle for long enough."""
        idle_since = self._clock()
        while True:
            busy = bool(self._running or self._waiting)
            # No timeout while a job runs, however long: its end is an event as well.
            timeout = None if busy else max(0.0, idle_since + self._idle_seconds - self._clock())
            try:
                event = self._inbox.get(timeout=timeout)
            except queue.Empty:
                # Idle for long enough; only an assignment at the last moment keeps the worker for another such time.
                if self._heartbeat.leave_if_unneeded():
                    return None
                idle_since = self._clock()
                continue
            if isinstance(event, JobEnded):
                return event.reason
            self._handle(event)
            idle_since = self._clock()

    def _handle(self, event: JobAssigned | AttemptFinished) -> None:
        if isinstance(event, AttemptFinished):
            self._running.discard(event.lease)
        else:
            self._waiting.append(event.lease)
        while self._waiting and len(self._running) < self._slots:
            lease = self._waiting.popleft()
            self._running.add(lease)
            self._start(partial(self._run_job, lease), f"job-{lease.job_name}")

    def _wind_up(self, reason: EndReason) -> None:
        """Stop everything before its next commit, let the reports go out, within `stop_seconds`."""
        why = _WHY[reason]
        log.warning("ending", reason=reason.value, running=len(self._running), waiting=len(self._waiting))
        self._heartbeat.refuse(why)
        give_up_at = self._clock() + self._stop_seconds
        for lease in [*self._running, *self._waiting]:
            lease.request_stop(why)
        while (self._running or self._waiting) and (left := give_up_at - self._clock()) > 0:
            try:
                event = self._inbox.get(timeout=left)
            except queue.Empty:
                # `stop_seconds` are over: what still runs is left to its lease.
                break
            # Assigned before the refusal was seen. It runs into its stop at once, so that its report goes out and the
            # lease need not expire.
            if isinstance(event, JobAssigned):
                event.lease.request_stop(why)
            if isinstance(event, JobAssigned | AttemptFinished):
                self._handle(event)
        for lease in self._running:
            log.error("a job did not stop in time; its lease will expire", job=lease.job_name, token=lease.token)

    def _run_job(self, lease: HeldJobLease) -> None:
        """One job in its own thread: run, deliver the report, release the slot."""
        structlog.contextvars.bind_contextvars(job=lease.job_name, token=lease.token)
        try:
            report = self._attempt(lease).model_copy(update={"usage": lease.usage})
            log.info("attempt over", outcome=report.outcome.value, reason=report.reason, message=report.message)
            # Another attempt owns the Lease, or it is gone: a report there would be ignored, or would fail as a
            # conflict.
            if lease.taken:
                self._heartbeat.release(lease)
            elif not self._heartbeat.deliver(lease, report):
                log.warning("the report was not delivered; the store knows what was committed")
        finally:
            self._inbox.put(AttemptFinished(lease))

    def _attempt(self, lease: HeldJobLease) -> JobReport:
        """Run the job; every way it can end becomes a report (an undeliverable one if the lease went to another)."""
        try:
            lease.ensure_held()
            log.info("job started", kind=lease.assignment.spec.kind)
            return self._runner.run(lease.assignment, lease)
        except JobStoppedError as error:
            return self._not_done(lease, JobReason.WORKER_STOPPED, error)
        except LeaseLostError as error:
            return self._not_done(lease, JobReason.LEASE_EXPIRED, error)
        except EngineLostError as error:
            # The worker ends as well: without its engine every other job here would fail in the same way.
            self._inbox.put(JobEnded(EndReason.ENGINE_LOST))
            return self._not_done(lease, JobReason.ENGINE_LOST, error)
        except ExecutorsOutOfMemoryError as error:
            # Charged, since the job may be what needs too much; the worker ends, so that the next one gets more memory.
            self._inbox.put(JobEnded(EndReason.EXECUTORS_OUT_OF_MEMORY))
            return JobReport(
                token=lease.token,
                outcome=ReportOutcome.FAILED,
                reason=JobReason.WORKER_OUT_OF_MEMORY,
                message=str(error),
            )
        except InvalidAssignmentError as error:
            return JobReport(
                token=lease.token, outcome=ReportOutcome.FAILED, reason=JobReason.INVALID_JOB, message=str(error)
            )
        except Exception as error:
            # The one place where a defect of ours becomes a report instead of silence until the lease expires.
            log.exception("job failed unexpectedly")
            return JobReport(
                token=lease.token,
                outcome=ReportOutcome.FAILED,
                reason=JobReason.INTERNAL_ERROR,
                message=f"{type(error).__name__}: {error} (the worker's log has the traceback)",
            )

    def _not_done(self, lease: HeldJobLease, reason: JobReason, error: Exception) -> JobReport:
        """A report of an attempt that ended for reasons outside the job: not charged."""
        return JobReport(
            token=lease.token, outcome=ReportOutcome.FAILED, reason=reason, message=str(error), charged=False
        )
